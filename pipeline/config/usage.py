"""What `VERB --help` says of every verb, and help in lines that fit."""

import re
from collections.abc import Mapping, Sequence
from textwrap import wrap

from pipeline.config.verbs import BENCH, BENCHMARKS, MODEL, NEW, SPELT, VERBS, metavar
from pipeline.config.words import door

KEPT = "\u00a0"  # a space at which textwrap does not fold
# Of verbs that are not short: what is typed, and what comes of it.
OTHERS: Mapping[str, tuple[str, str]] = {
    "plan": ("plan [VERB] SOURCE [KEY=VALUE …]", "Say what would happen, what it takes and what is wrong, and stop."),
    "graph": ("graph [VERB] SOURCE [KEY=VALUE …]", "Print the graph of stages as Mermaid, and stop."),
    "why": ("why [VERB] SOURCE [KEY=VALUE …]", "Say what is done already and where, what is not, and why; and stop."),
    "explain": (
        "explain [GROUP | GROUP=OPTION | KEY] [--config-dir DIR]",
        "Say what a group, an option or a setting is; without one, which groups there are.",
    ),
    "gc": ("gc [--delete] [paths.outputs=DIR]", "List results that no run refers to; --delete removes them."),
    "runs": (
        "runs [RUN | SWEEP | CONDITION …] [--sort METRIC] [--reverse] [--limit N] [--format table|csv|json] | "
        "runs show RUN | runs tag RUN … [+TAG] [-TAG] [--note TEXT] | runs rm RUN … [--yes] | "
        "runs export [RUN | CONDITION …] [--format csv|json|parquet] [--out FILE]",
        "List the runs that there are, newest first; look at one, tag it, remove it, export it.",
    ),
    "compare": (
        "compare RUN RUN … [--baseline RUN] [--fail-if METRIC>TOLERANCE] [--pareto METRIC,METRIC] "
        "[--format table|csv|json|html] [--out DIR|FILE]",
        "Say what runs and sweeps differ in, in settings and in what they found.",
    ),
    "report": (
        "report [RUN | SWEEP | CONDITION …] [--out FILE.html] [--open]",
        "Write one HTML page about runs, which opens from disk; of one run in its folder, else beside them.",
    ),
    "reproduce": (
        "reproduce RUN [--out DIR] [--config-dir DIR]",
        "Run it again elsewhere, and say what is the same and what is not.",
    ),
    "tune": ("tune", "Time how kernels had best divide their work on this machine, and which are fastest on its GPU."),
    **{
        name: (f"{name} NAME [--dir DIR]", f"Write a {name.removeprefix('new-')} to start from, and a test of it.")
        for name in NEW
    },
}


def folded(text: str, columns: int = 80) -> list[str]:
    """A line of help in lines that fit, folded at spaces, or else behind commas."""
    margin = " " * (len(text) - len(text.lstrip()) + 2)
    found = []
    while len(text) > columns:
        at = max(text.rfind(" ", len(margin), columns), text.rfind(",", len(margin), columns - 1) + 1)
        if at <= len(margin):
            break
        found.append(text[:at].rstrip())
        text = margin + text[at:].lstrip()
    return [*found, text]


def overview(text: str, families: Mapping[str, Sequence[str]]) -> list[str]:
    """The help of the whole program, in lines that fit.

    Args:
        text: as conf/config.yaml has it, the groups filled in.
        families: options of `model` that are no checkpoint.
    """
    found = []
    for line in text.replace("PROGRAM", " ".join(door())).splitlines():
        if line.startswith("model: "):
            names = line.removeprefix("model: ").split(", ")
            found += folded(f"model: {', '.join(n for n in names if n not in families)}")
            found += folded(f"model, families of any model.source=: {', '.join(families)}")
        else:
            found += folded(line)
    return found


def _typed(words: Sequence[str]) -> list[str]:
    """What is typed, in lines that fit; what is in brackets stays together."""
    kept = re.sub(r"\[[^]]*\]", lambda m: m[0].replace(" ", KEPT), " ".join(words))
    lines = wrap(kept, 78, subsequent_indent="    ", break_on_hyphens=False)
    return [line.replace(KEPT, " ") for line in lines]


def usage(verb: str) -> str:
    """What a verb takes."""
    if verb in OTHERS:
        line, about = OTHERS[verb]
        return "\n".join([*_typed(f"weightmill {line}".split(" ")), "", *wrap(about, 78)])
    short = SPELT[verb]
    takes = [f"[{name} {metavar(name, verb)}]" for name in short.takes]
    typed = [f"weightmill {verb} {short.shown}".rstrip(), *(["['PROMPT']"] if short.prompt else []), *takes]
    words = "SOURCE or PROMPT" if short.prompt else short.shown
    one = short.sources == (MODEL,)
    what = "SOURCE is a folder" if one else "Each is a folder"
    named = "hf://owner/name, or one of the names that `weightmill --help` lists under model"
    options = " Options, and what they spell:" if short.takes else ""
    about = f"{short.about[:1].upper()}{short.about[1:]}{'' if short.about.endswith('?') else '.'}"
    if short.sources:
        about = f"{about} {what}, a GGUF file, {named if one else 'or hf://owner/name'}."
    heads = {"SOURCE": f"{MODEL}=SOURCE, or model=NAME"} if one else {k.upper(): f"{k}=…" for k in short.sources}
    spells = heads | {n: s.format("…") for n, s in short.takes.items()}
    return "\n".join(
        [
            *_typed([*typed, "[KEY=VALUE …]"]),
            "",
            *wrap(f"{about}{options}", 78),
            "",
            *(f"  {name:<14} {text}" for name, text in spells.items()),
            "",
            *([*_benchmarks(), ""] if verb == BENCH else []),
            "Settings may follow as KEY=VALUE; `weightmill explain` says which there are.",
            *([f"After -- every word is {words}, whatever it begins with."] if short.sources else []),
        ]
    )


def _benchmarks() -> list[str]:
    """Benchmarks with a word of their own, in lines."""
    shown = {f"{BENCH} {name}": short for name, short in BENCHMARKS.items()}
    return ["Others, each of which has its own --help:", "", *(f"  {n:<14} {s.about}" for n, s in shown.items())]


def asked(words: Sequence[str]) -> str | None:
    """The verb that `--help` is asked of; None: there is none among the words."""
    verbs = sorted((word for word in words if word in VERBS), key=VERBS.index)
    if BENCH not in words:
        return verbs[0] if verbs else None
    return next((f"{BENCH} {word}" for word in words[words.index(BENCH) + 1 :] if word in BENCHMARKS), BENCH)

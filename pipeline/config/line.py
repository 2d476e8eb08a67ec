"""The words of a command line, sorted: a verb, Hydra's options, and overrides; and the short verbs, which are spelt as
overrides, for people who do not want to know Hydra.

Words may stand in any order: `-m plan …` is `plan -m …`. After `--` no word is an option.
"""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os.path import exists, expanduser
from pathlib import Path
from textwrap import wrap

from pipeline.config.overrides import PROMPTS, listed, parsed_override, quoted
from pipeline.errors import ConfigError, did_you_mean, nearest
from pipeline.rules import EXTRA, Rule, added

STOPS = ("plan", "graph", "why")  # verbs that stop before anything is read; a short one may follow
NEW = tuple(f"new-{kind}" for kind in ("stage", "method", "dialect", "kernel", "family"))
APART = ("explain", "gc", "tune", *NEW)  # verbs with arguments of their own, and no run
# Hydra's options: whether a value follows.
OPTIONS: Mapping[str, bool] = {
    "--help": False, "-h": False, "--hydra-help": False, "--version": False, "--multirun": False, "-m": False,
    "--run": False, "-r": False, "--resolve": False, "--shell-completion": False, "-sc": False, "--cfg": True,
    "-c": True, "--package": True, "-p": True, "--config-path": True, "-cp": True, "--config-name": True, "-cn": True,
    "--config-dir": True, "-cd": True, "--experimental-rerun": True, "--info": False, "-i": False,
}  # fmt: skip
OPTION = re.compile(r"--?[A-Za-z][\w-]*")
DELETION = re.compile(r"~[A-Za-z_][\w./@-]*(=.*)?", re.DOTALL)  # and not `~/`, which is home
OVERRIDE = re.compile(rf"{DELETION.pattern}|[+]{{0,2}}(?!-)[\w./@-]*=.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Short:
    """A short verb.

    Attributes:
        about: what it does, in a line.
        spells: what it always says.
        takes: its own options, by what they spell; `{}` is the value.
        prompt: a second word is what is continued.
    """

    about: str
    spells: tuple[str, ...]
    takes: Mapping[str, str] = field(default_factory=dict)
    prompt: bool = False


_QUANT = {"--quant": "quant={}", "--rule": f"{EXTRA}={{}}"}
_MODEL = {
    **_QUANT,
    "--temperature": "sampling.temperature={}",
    "--max-tokens": "sampling.max_tokens={}",
    "--system": "system={}",
}
SHORT: Mapping[str, Short] = {
    "convert": Short(
        "write it in another format, quantized or not", ("flow=convert",),
        {"--to": "export={}", **_QUANT, "--dtype": "export.dtype={}", "--out": "export.path={}"},
    ),
    "evaluate": Short(
        "perplexity on texts of yours, before and after", ("flow=evaluate",),
        {**_QUANT, "--texts": "evaluate.texts={}"},
    ),
    "generate": Short(
        "text from a prompt", ("flow=generate",), {**_MODEL, "--prompt-file": "prompt_file={}"}, prompt=True
    ),
    "chat": Short("talk to it", (), _MODEL),
}  # fmt: skip
VERBS = (*SHORT, *STOPS, *APART)
SWEPT = ("--quant", "--to")  # options that take several values, to compare them
LISTS = ("--texts",)  # options that take several words
RULE = "--rule"  # PATTERN=QUANT, or ROLE=QUANT; it may be repeated
TEXTS = ("--system",)  # options whose value is a text as typed
_OWN = {name for short in SHORT.values() for name in short.takes}


@dataclass(frozen=True, slots=True)
class Line:
    """Attributes:
    verb: `run` where none was typed.
    options: Hydra's.
    overrides: what is set.
    spelt: how the line would be typed without its short verb; None: it has none.
    """

    verb: str
    options: list[str]
    overrides: list[str]
    spelt: str | None = None

    @property
    def sweeps(self) -> bool:
        return not {"-m", "--multirun"}.isdisjoint(self.options)


def read(args: Sequence[str], models: Sequence[str] = ()) -> Line:
    """What was typed, sorted.

    Args:
        models: options that a short verb may be given in the place of a source.

    Raises:
        ConfigError: words that are none of it; all of them at once.
    """
    verbs, options, words, last = _sorted(args)
    short = next((verb for verb in verbs if verb in SHORT), None)
    stop = next((verb for verb in verbs if verb in STOPS), None)
    if len(verbs) > (short is not None) + (stop is not None):
        raise ConfigError(
            f"{' '.join(verbs)}: one verb at a time, or {', '.join(STOPS[:-1])} or {STOPS[-1]} before another"
        )
    if short is not None:
        spelt, swept = _spelt(short, words, last, models)
        options = [*options, *(["-m"] if swept and "-m" not in options else [])]
        shown = [*filter(None, (stop, "chat" if short == "chat" else None)), *options, *spelt]
        verb = stop or ("chat" if short == "chat" else "run")
        return Line(verb, options, spelt, shlex.join([*door(), *shown]))
    words += last
    wrong = _spaced(words) or [_stray(word) for word in words if not OVERRIDE.fullmatch(word)]
    if wrong:
        raise ConfigError("\n".join(wrong))
    return Line(stop or "run", options, words)


def apart(args: Sequence[str]) -> tuple[str, list[str]] | None:
    """The verb of `APART` that stands somewhere before any other verb, and all words but it; None: there is none."""
    before = before_dashes(args)
    values = {i + 1 for i, word in enumerate(before) if word in _OWN or OPTIONS.get(word)}
    for i, word in enumerate(before):
        if word in VERBS and i not in values:
            return (word, [*args[:i], *args[i + 1 :]]) if word in APART else None
    return None


def before_dashes(args: Sequence[str]) -> Sequence[str]:
    """The words among which options are: those before `--`."""
    return args[: args.index("--")] if "--" in args else args


def usage(verb: str) -> str:
    """What a short verb takes."""
    short = SHORT[verb]
    takes = " ".join(f"[{name} {_metavar(name)}]" for name in short.takes)
    prompt = " ['PROMPT']" if short.prompt else ""
    about = f"""{short.about.capitalize()}. SOURCE is a folder, a GGUF file, hf://owner/name, or one of the names that
        `weightmill --help` lists under model. Options, and what they spell:"""
    spells = {"SOURCE": "model.source=SOURCE, or model=NAME"} | {n: s.format("…") for n, s in short.takes.items()}
    return "\n".join(
        [
            *wrap(f"weightmill {verb} SOURCE{prompt} {takes} [KEY=VALUE …]", 78, subsequent_indent="    "),
            "",
            *wrap(" ".join(about.split()), 78),
            "",
            *(f"  {name:<14} {text}" for name, text in spells.items()),
            "",
            "Whatever else `weightmill --help` lists may follow as KEY=VALUE.",
            f"After -- every word is {'SOURCE or PROMPT' if short.prompt else 'SOURCE'}, whatever it begins with.",
        ]
    )


def _metavar(name: str) -> str:
    return {"--texts": "FILE …", RULE: "PATTERN=NAME", "--quant": "NAME[,NAME…]", "--to": "EXPORT"}.get(
        name, name.strip("-").upper()
    )


def door() -> list[str]:
    """How this program was called: by one of its doors, the printed line goes through the same: its words."""
    name = Path(sys.argv[0]).name
    module = "weightmill" if Path(sys.argv[0]).parent.name == "weightmill" else "pipeline"
    return ["weightmill"] if name == "weightmill" else ["python", "-m", module]


def _sorted(args: Sequence[str]) -> tuple[list[str], list[str], list[str], list[str]]:
    """Verbs, Hydra's options, all else in its order, and what follows `--`.

    A short verb's option is one word with its value, `--out=DIR`; without `=` where it has none.

    Raises:
        ConfigError: an option that nobody has.
    """
    verbs: list[str] = []
    options: list[str] = []
    words: list[str] = []
    rest = list(before_dashes(args))
    last = list(args[len(rest) + 1 :])
    while rest:
        word = rest.pop(0)
        name, given, _ = word.partition("=")
        if name in _OWN:
            valued = not given and rest and rest[0].partition("=")[0] not in {*_OWN, *OPTIONS}
            words.append(f"{word}={rest.pop(0)}" if valued else word)
        elif name in OPTIONS:
            options.append(word)
            if OPTIONS[name] and not given and rest:
                options.append(rest.pop(0))
        elif OPTION.fullmatch(name):
            near = nearest(name, [o for o in (*OPTIONS, *sorted(_OWN)) if o.startswith("--")])
            meant = f"; did you mean {' or '.join(near)}?" if near else ""
            raise ConfigError(f"{word}: there is no such option{meant} (weightmill --help says what there is)")
        elif (word in SHORT and not words) or (word in (*STOPS, *APART) and not {*verbs} & {*SHORT}):
            verbs.append(word)
        else:
            words.append(word)
    return verbs, options, words, last


def _spaced(words: Sequence[str]) -> list[str]:
    """What is wrong where somebody typed spaces around `=`, which makes words of one."""
    found = []
    for i, before in enumerate(words):
        after = words[i + 1] if words[i + 1 :] else ""
        if before == "=" or (before.endswith("=") and after and not OVERRIDE.fullmatch(after)):
            around = [*(words[i - 1 : i] if before == "=" else []), before, after]
            found.append(f"{' '.join(around)}: there are no spaces around '=': {''.join(around)}")
        elif re.match(r"\S+ *= ", before) and not before.lstrip("+").startswith(("prompt=", "system=")):
            key, _, value = before.partition("=")
            found.append(f"{before!r}: there are no spaces around '=': {key.strip()}={value.strip()}")
    return found


def _stray(word: str) -> str:
    """What a word that sets nothing may have been meant for."""
    name = word.partition("=")[0]
    if name in _OWN:
        verbs = [verb for verb, short in SHORT.items() if name in short.takes]
        spelt = SHORT[verbs[0]].takes[name].format("…")
        return f"{name}: is an option of {', '.join(verbs)}; without such a verb write {spelt}"
    if exists(expanduser(word)) or "://" in word:
        return f"{word!r}: a checkpoint is given as model.source={word}, or after a verb: weightmill convert {word}"
    return f"{word!r}: a setting is written key=value{did_you_mean(word, VERBS)}"


def _spelt(verb: str, words: Sequence[str], last: Sequence[str], models: Sequence[str]) -> tuple[list[str], bool]:
    """The overrides that a short verb and its words are, and whether they are several jobs.

    Args:
        last: words that are neither options nor overrides.

    Raises:
        ConfigError: no source, an option without a value, or a word too many.
    """
    short = SHORT[verb]
    said: list[str] = []
    swept = False
    given: list[str] = []
    set_ones: list[str] = []
    rules: list[str] = []
    found = any(_of_model(word) for word in words)
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, has_value, value = word.partition("=")
        if OPTION.fullmatch(name):
            if name not in short.takes:
                raise ConfigError(f"{verb} {name}: there is no such option{did_you_mean(name, short.takes)}")
            if not has_value:
                raise ConfigError(f"{verb} {name}: a value is expected, {name} {_metavar(name)}")
            values = [value]
            while name in LISTS and rest and _of_list(rest[0]):
                values.append(rest.pop(0))
            swept |= name in SWEPT and "," in value
            if name == RULE:
                rules.append(value)
            else:
                said.append(short.takes[name].format(_written(name, values)))
        else:
            for_source = not given and not found and exists(expanduser(word))
            for_prompt = short.prompt and len(given) == (not found) and not _prompted(words, last)
            taken = for_source or (for_prompt and DELETION.fullmatch(word)) or not OVERRIDE.fullmatch(word)
            (given if taken else set_ones).append(word)
    given += last
    said += [added(map(_rule, rules))] if rules else []
    if not given and not found:
        raise ConfigError(f"{verb}: of which checkpoint? {_source_first(verb, words, models)}")
    if not found:
        source = given.pop(0)
        named = source in models and not exists(expanduser(source))
        said.insert(0, f"model={source}" if named else f"model.source={_plain(source)}")
    if given and short.prompt:
        said.append(f"prompt={given.pop(0)}")
    if given:
        hint = "; a prompt of several words goes in quotes" if short.prompt else ""
        raise ConfigError(f"{verb}: {given[0]!r} is one word too many{hint}")
    return [*said[:1], *short.spells, *said[1:], *set_ones] if not found else [*short.spells, *said, *set_ones], swept


def _of_model(word: str) -> bool:
    return word.lstrip("+").startswith(("model=", "model.source="))


def _of_list(word: str) -> bool:
    """Whether a word that follows `--texts FILE` is another file."""
    return not OPTION.fullmatch(word.partition("=")[0]) and (
        not OVERRIDE.fullmatch(word) or (not _of_model(word) and exists(expanduser(word)))
    )


def _prompted(words: Sequence[str], last: Sequence[str]) -> bool:
    """Whether other words say what is continued."""
    return bool(last) or any(word.lstrip("+").partition("=")[0] in (*PROMPTS, "--prompt-file") for word in words)


def _source_first(verb: str, words: Sequence[str], models: Sequence[str]) -> str:
    """How a line without a source should have been typed: a list may have taken the source too."""
    lists = [word.partition("=")[0] for word in words if word.partition("=")[0] in LISTS]
    if not lists:
        return f"weightmill {verb} DIR, FILE.gguf or hf://owner/name"
    rest = list(words)
    at = next((i for i, word in enumerate(rest) if _like_source(word, models)), None)
    source = "SOURCE" if at is None else rest.pop(at)
    typed = [part for word in rest for part in (word.split("=", 1) if OPTION.match(word) else [word])]
    return f"SOURCE comes before {lists[0]}: {shlex.join([*door(), verb, source, *typed])}"


def _like_source(word: str, models: Sequence[str]) -> bool:
    """Whether a word looks like a checkpoint, and not like a text."""
    there = Path(expanduser(word))
    return not OPTION.match(word) and ("://" in word or word in models or there.suffix == ".gguf" or there.is_dir())


def _written(name: str, values: list[str]) -> str:
    if name in LISTS:
        return listed(values)
    return values[0] if name in SWEPT or name in TEXTS else _plain(values[0])


def _rule(word: str) -> Rule:
    """`attention=keep`, of a role, or `*down_proj*=int8`, of a pattern, as a rule.

    Raises:
        ConfigError: it is neither.
    """
    name, _, to = word.rpartition("=")
    if not name or not to.isidentifier():
        raise ConfigError(
            f"{RULE} {word}: a rule is PATTERN=NAME or ROLE=NAME, such as '*down_proj*=int8' or attention=keep"
        )
    return Rule(to, role=name) if name.isidentifier() else Rule(to, match=name)


def _plain(value: str) -> str:
    """`value` as an override has it: in quotes where Hydra would take it for something else."""
    parsed = parsed_override(f"key={value}")
    plain = value.startswith("~") or (parsed is not None and not parsed.is_sweep_override())
    return value if plain else quoted(value)

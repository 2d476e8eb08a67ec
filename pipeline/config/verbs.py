"""The short verbs, for people who do not want to know Hydra: each only spells overrides, which are printed, so that one
learns them.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config.asked import COMMANDS
from pipeline.config.options import keys, options
from pipeline.config.overrides import PROMPTS, listed, parsed_override, quoted
from pipeline.config.overrides import TEXTS as TYPED
from pipeline.config.words import DELETION, OPTION, OPTIONS, OVERRIDE, door, is_option, there
from pipeline.errors import ConfigError, nearest
from pipeline.rules import EXTRA, Rule, added

STOPS = ("plan", "graph", "why")  # verbs that stop before anything is read; a short one may follow
NEW = tuple(f"new-{kind}" for kind in ("stage", "method", "dialect", "kernel", "family"))
APART = ("explain", "tune", *COMMANDS, *NEW)  # verbs with arguments of their own, and no run
MODEL = "model.source"


@dataclass(frozen=True, slots=True)
class Short:
    """A short verb.

    Attributes:
        about: what it does, in a line.
        spells: what it always says.
        takes: its own options, by what they spell; `{}` is the value.
        prompt: a second word is what is continued.
        sources: what its first words spell: keys.
    """

    about: str
    spells: tuple[str, ...]
    takes: Mapping[str, str] = field(default_factory=dict)
    prompt: bool = False
    sources: tuple[str, ...] = (MODEL,)

    @property
    def shown(self) -> str:
        """Its first words as its help has them."""
        return "SOURCE" if self.sources == (MODEL,) else " ".join(name.upper() for name in self.sources)


RULE = "--rule"  # PATTERN=QUANT, or ROLE=QUANT; it may be repeated
QUANT, DTYPE = "--quant", "--dtype"
_QUANT = {QUANT: "quant={}", RULE: f"{EXTRA}={{}}"}
_MODEL = {
    **_QUANT,
    "--temperature": "sampling.temperature={}",
    "--max-tokens": "sampling.max_tokens={}",
    "--system": "system={}",
}
_FILES = {"--to": "export={}", "--out": "export.path={}"}
SHORT: Mapping[str, Short] = {
    "convert": Short(
        "write it in another format, quantized or not", ("flow=convert",),
        {"--to": "export={}", **_QUANT, DTYPE: "export.dtype={}", "--out": "export.path={}"},
    ),
    "evaluate": Short(
        "perplexity on texts of yours, before and after", ("flow=evaluate",),
        {**_QUANT, "--texts": "evaluate.texts={}"},
    ),
    "generate": Short(
        "text from a prompt", ("flow=generate",), {**_MODEL, "--prompt-file": "prompt_file={}"}, prompt=True
    ),
    "chat": Short("talk to it", (), _MODEL),
    "sensitivity": Short(
        "which tensors lose most when quantized", ("flow=sensitivity",), {**_QUANT, "--by": "sensitivity.by={}"}
    ),
    "transcode": Short(
        "write it in another format, every value as it is", ("flow=transcode",), {QUANT: "quant={}", **_FILES}
    ),
    "bench": Short(
        "how quick and how right engines are with it", ("flow=bench",),
        {"--against": "bench.against={}", "--tolerance": "bench.tolerance={}"},
    ),
    "verify": Short("are two checkpoints the same model?", ("flow=verify",), sources=("a", "b")),
}  # fmt: skip
BENCH = "bench"
_AGAINST = SHORT[BENCH].takes
BENCHMARKS: Mapping[str, Short] = {  # by the word behind `bench`
    "convert": Short("how quick converting it is, beside copying it", ("flow=bench_convert",), {**_QUANT, **_AGAINST}),
    "ops": Short("how quick and how right every op is with every backend", ("flow=bench_ops",), _AGAINST, sources=()),
    "parts": Short("where the time of a step goes, op by op", ("flow=bench_parts",), {**_QUANT, **_AGAINST}),
    "quality": Short("what weights lose at how many bits, beside others", ("flow=bench_quality",), _AGAINST),
    "scale": Short("what things cost against their size", ("flow=bench_scale",), _AGAINST, sources=()),
    "train": Short("how quick a step of training it is", ("flow=bench_train",), _AGAINST),
}  # fmt: skip
LISTED = {BENCH: "quants", f"{BENCH} quality": "bench.quants"}  # what is said there in the place of --quant
SPELT: Mapping[str, Short] = {**SHORT, **{f"{BENCH} {name}": short for name, short in BENCHMARKS.items()}}
STOPPED = Short("", (), {name: spelt for short in SHORT.values() for name, spelt in short.takes.items()})
VERBS = (*SHORT, *STOPS, *APART)
SWEPT = (QUANT, "--to")  # options that take several values, to compare them
LISTS = ("--texts",)  # options that take several words
TEXTS = ("--system",)  # options whose value is a text as typed
OWN = STOPPED.takes
EXAMPLE = "Once upon a time"


def metavar(name: str, verb: str) -> str:
    """What follows an option, as help has it."""
    known = {
        "--texts": "FILE …", RULE: "PATTERN=NAME", "--to": "EXPORT", "--by": "layer|role|tensor", "--out": "DIR",
        "--against": "BASELINE", "--tolerance": "5%",
        QUANT: "NAME" if verb == "chat" else "NAME[,NAME…]",
    }  # fmt: skip
    return known.get(name, name.strip("-").upper())


def no_such_option(verb: str | None, word: str) -> str:
    """What is said of an option that there is not, with those that the verb takes."""
    name = word.partition("=")[0]
    who = f"{verb} {name}" if verb else word
    own = (SPELT[verb] if verb else STOPPED).takes
    known = own if verb else [*own, *(o for o in OPTIONS if o.startswith("--"))]
    close = nearest(name.lstrip("-"), [option.lstrip("-") for option in known])  # which all begin alike
    near = f"; did you mean {' or '.join(f'--{option}' for option in close)}?" if close else ""
    if name == QUANT and (listed := LISTED.get(verb or "")):
        return f"{who}: it measures several; '{listed}=[NAME,NAME…]'"
    of = [other for other, short in SHORT.items() if name in short.takes]
    if of:
        near = f"; {', '.join(of)} {'has' if len(of) == 1 else 'have'} it"
    return f"{who}: there is no such option{near} (weightmill {f'{verb} ' if verb else ''}--help says what there is)"


def spelt(
    short: Short, verb: str, words: Sequence[str], last: Sequence[str], groups: Mapping[str, Sequence[str]]
) -> tuple[list[str], bool]:
    """The overrides that a short verb and its words are, and whether they are several jobs.

    Args:
        verb: its name.
        words: an option is one with its value, `--out=DIR`.
        last: words that are neither options nor overrides.
        groups: options by group; those of `model` may be given in the place of a source.

    Raises:
        ConfigError: no source, an option without a value, two answers to one question, or a word too many.
    """
    models = groups.get("model", ())
    said: list[str] = []
    swept = False
    given: list[str] = []
    set_ones: list[str] = []
    rules: list[str] = []
    wanted = _wanted(short, words, last, models)
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, has_value, value = word.partition("=")
        if OPTION.fullmatch(name):
            if name not in short.takes:
                raise ConfigError(no_such_option(verb, word))
            if not has_value:
                raise ConfigError(f"{verb} {name}: a value is expected, {name} {metavar(name, verb)}")
            values = [value]
            while name in LISTS and rest and _of_list(rest[0]):
                values.append(rest.pop(0))
            swept |= name in SWEPT and "," in value
            if name == RULE:
                rules.append(value)
            else:
                said.append(short.takes[name].format(_written(name, values)))
        else:
            for_source = len(given) < len(wanted) and there(word)
            for_prompt = short.prompt and len(given) == len(wanted) and not _prompted(words, last)
            taken = for_source or (for_prompt and DELETION.fullmatch(word)) or not OVERRIDE.fullmatch(word)
            (given if taken else set_ones).append(word)
    given += last
    typed = [word for word in words if word not in given]
    _contradiction(verb, words)
    said += [added(map(_rule, rules))] if rules else []
    if len(given) < len(wanted):
        raise ConfigError(
            f"{verb}: of which checkpoint{'s' * (len(wanted) > 1)}? {_source_first(short, verb, words, models)}"
        )
    if verb == BENCH and given and (said_so := _no_benchmark(given[0], models)):
        raise ConfigError(said_so)
    heads = []
    sources, given = given[: len(wanted)], given[len(wanted) :]
    for key, source in zip(wanted, sources, strict=True):
        named = key == MODEL and source in models and not there(source)
        heads.append(f"model={source}" if named else f"{key}={_plain(source)}")
    if short.prompt and not _prompted(words, ()):
        said.append(f"prompt={_continued(verb, sources, given, typed)}")
        given = []
    if given:
        if (better := with_options(short, words, groups)) != list(words):
            whole = shlex.join([*door(), verb, *better, *(["--", *last] if last else [])])
            raise ConfigError(f"{verb}: {given[0]!r} is one word too many; write\n{whole}")
        hint = "; a value of several words goes in quotes" if typed else ""
        raise ConfigError(f"{verb}: {given[0]!r} is one word too many{hint}")
    _twice(short, verb, [word for word in words if word in set_ones or is_option(word)])
    return [*heads, *short.spells, *said, *set_ones], swept


def _no_benchmark(word: str, models: Sequence[str]) -> str:
    """What is said of a word behind `bench` that is no source, and nearly the name of a benchmark; else nothing."""
    near = [] if there(word) or is_source(word, models) else nearest(word, [*BENCHMARKS])
    meant = " or ".join(f"`bench {name}`" for name in near)
    return f"bench {word}: no such file or folder, and no benchmark of that name; did you mean {meant}?" if near else ""


def _continued(verb: str, sources: Sequence[str], given: Sequence[str], typed: Sequence[str]) -> str:
    """The prompt among the words behind the source.

    Raises:
        ConfigError: there is none, or it is several words; with what to type.
    """
    if len(given) == 1:
        return given[0]
    whole = shlex.join([*door(), verb, *sources, " ".join(given) or EXAMPLE, *typed])
    if not given and (text := next(filter(_like_a_text, typed), None)) is not None:
        rest = [word for word in typed if word != text]
        whole = shlex.join([*door(), verb, *sources, *rest, "--", text])
        raise ConfigError(f"{verb}: what is to be continued? {text!r} sets a value; where it is the prompt:\n{whole}")
    if not given:
        raise ConfigError(f"{verb}: what is to be continued? --prompt-file=FILE, - for standard input, or\n{whole}")
    raise ConfigError(f"{verb}: {given[1]!r} is one word too many; a prompt of several words goes in quotes:\n{whole}")


def _like_a_text(word: str) -> bool:
    """Whether an override may have been meant for a prompt: there is no such key, or it goes on after a space."""
    key, _, value = word.lstrip("+~").partition("=")
    group = re.split(r"[./@]", key)[0]
    ours = group in keys() or bool(options(group))
    goes_on = " " in value and key not in TYPED and value[:1] not in "[{('\""
    return bool(OVERRIDE.fullmatch(word)) and not is_option(word) and (goes_on or not ours)


def _contradiction(verb: str, words: Sequence[str]) -> None:
    """
    Raises:
        ConfigError: codes are asked for, and files without any.
    """
    said = [word.lstrip("+").partition("=")[::2] for word in words]
    dtype = {DTYPE: "keep", **dict(said)}[DTYPE]
    asked = [(key, value) for key, value in said if key in (QUANT, "quant", RULE) and _quantizes(key, value)]
    if not asked or dtype == "keep":
        return
    which, given = asked[0]
    shown = f"{which}={given}" if which == "quant" else f"{which} {given}"
    raise ConfigError(
        f"{verb} {shown} {DTYPE} {dtype}: {DTYPE} writes plain values and nothing packed, as large as {dtype} is, with "
        f"the error of {given}. Leave out {DTYPE}, and what is quantized is written packed; leave out {which}, and "
        f"nothing is quantized; or write export.dtype={dtype} in the place of {DTYPE}, if you want just that"
    )


def _quantizes(key: str, value: str) -> bool:
    """Whether some of the values of `--quant`, or the target of a rule, is a quantization."""
    plain = {"none", "keep", *(["quant"] if key == RULE else [])}  # `quant` is what --quant says
    return not plain.issuperset([value.rpartition("=")[2]] if key == RULE else value.split(","))


def _twice(short: Short, verb: str, words: Sequence[str]) -> None:
    """
    Raises:
        ConfigError: what has one value is given two.
    """
    said: dict[str, str] = {}
    for word in words:
        name, has_value, value = word.partition("=")
        if name == RULE or not (name in short.takes or (has_value and OVERRIDE.fullmatch(word))):
            continue
        key = short.takes[name].partition("=")[0] if name in short.takes else name.lstrip("+")
        before = said.setdefault(key, word)
        if before.partition("=")[2] != value:
            both = " ".join(w.replace("=", " ", 1) if is_option(w) else w for w in (before, word))
            swept = f", or both in turn: {name} {before.partition('=')[2]},{value}" if name in SWEPT else ""
            several = f", or {name} FILE FILE" if name in LISTS else ""
            raise ConfigError(f"{verb} {both}: two values for one setting; leave one of them out{swept}{several}")


def with_options(short: Short, words: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """`words` with the option before those that only its group has: `DIR int4` is `DIR --quant int4`."""
    found = list(words)
    for option in SWEPT:
        group = short.takes.get(option, "").partition("=")[0]
        known = groups.get(group, ())
        at = [i for i, w in enumerate(found) if i and all(part in known for part in w.split(",")) and not there(w)]
        if at:
            values = [w.partition("=")[2] for w in found if w.partition("=")[0] == option]
            joined = ",".join([*values, *(found[i] for i in at)])
            found = [w for i, w in enumerate(found) if i not in at and w.partition("=")[0] != option]
            found += [option, joined]
    return found


def _wanted(short: Short, words: Sequence[str], last: Sequence[str], models: Sequence[str]) -> list[str]:
    """Keys of its sources that no override gives. Of `model=`, which may have one, only where none is typed."""
    keys = {word.lstrip("+").partition("=")[0] for word in words if OVERRIDE.fullmatch(word)}
    loose: list[str] = []
    of_list = False
    for word in words:
        of_list = (of_list and _of_list(word)) or word.partition("=")[0] in LISTS
        if not of_list and not is_option(word) and not OVERRIDE.fullmatch(word):
            loose.append(word)
    loose += last
    typed = bool(loose) and (not short.prompt or is_source(loose[0], models))
    return [k for k in short.sources if k not in keys and not (k == MODEL and "model" in keys and not typed)]


def _of_list(word: str) -> bool:
    """Whether a word that follows `--texts FILE` is another file."""
    of_model = word.lstrip("+").startswith(("model=", f"{MODEL}="))
    return not is_option(word) and (not OVERRIDE.fullmatch(word) or (not of_model and there(word)))


def _prompted(words: Sequence[str], last: Sequence[str]) -> bool:
    """Whether other words say what is continued."""
    return bool(last) or any(word.lstrip("+").partition("=")[0] in (*PROMPTS, "--prompt-file") for word in words)


def _source_first(short: Short, verb: str, words: Sequence[str], models: Sequence[str]) -> str:
    """How a line without a source should have been typed: a list may have taken the source too."""
    lists = [word.partition("=")[0] for word in words if word.partition("=")[0] in LISTS]
    if not lists:
        kinds = "DIR, FILE.gguf or hf://owner/name" if short.sources == (MODEL,) else "DIR DIR"
        return f"weightmill {verb} {kinds}"
    rest = list(words)
    at = next((i for i, word in enumerate(rest) if is_source(word, models)), None)
    source = "SOURCE" if at is None else rest.pop(at)
    typed = [part for word in rest for part in (word.split("=", 1) if OPTION.match(word) else [word])]
    return f"SOURCE comes before {lists[0]}: {shlex.join([*door(), verb, source, *typed])}"


def is_source(word: str, models: Sequence[str]) -> bool:
    """Whether a word looks like a checkpoint, and not like a text."""
    path = Path(word).expanduser() if word.startswith("~/") else Path(word)
    return not OPTION.match(word) and ("://" in word or word in models or path.suffix == ".gguf" or path.is_dir())


def _written(name: str, values: list[str]) -> str:
    if name in LISTS:
        return listed([part for value in values for part in ([value] if there(value) else value.split(","))])
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

"""The words of a command line, sorted: a verb, Hydra's options, and overrides.

Words may stand in any order: `-m plan …` is `plan -m …`. After `--` no word is an option.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from pipeline.config.foreign import is_foreign, refusal
from pipeline.config.synonyms import CHOICES
from pipeline.config.verbs import (
    APART,
    BENCH,
    BENCHMARKS,
    OWN,
    SHORT,
    SPELT,
    STOPPED,
    STOPS,
    TEXTS,
    VERBS,
    is_source,
    spelt,
    with_options,
)  # fmt: skip
from pipeline.config.words import INFO, OPTION, OPTIONS, OVERRIDE, before_dashes, door, is_option, there, together
from pipeline.errors import ConfigError, did_you_mean, nearest


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


def read(args: Sequence[str], groups: Mapping[str, Sequence[str]] | None = None) -> Line:
    """What was typed, sorted.

    Args:
        groups: options by group: one of `model` may be given in the place of a source, one of `flow` as a verb.

    Raises:
        ConfigError: words that are none of it; all of them at once.
    """
    try:
        return _read(args, groups or {})
    except ConfigError as why:
        whole = together(args, TEXTS)
        if whole is None:
            raise
        said = [_in_quotes(args, whole)]
        try:
            _read(whole, groups or {})
        except ConfigError as besides:
            said.append(str(besides))
        raise ConfigError("\n".join(said)) from why


def _in_quotes(args: Sequence[str], whole: Sequence[str]) -> str:
    """What to paste where a shell took words apart."""
    words = [word for word in whole if word not in args]
    they = "is one word, and goes" if len(words) == 1 else "are one word each, and go"
    return f"{', '.join(words)}: {they} in quotes:\n{shlex.join([*door(), *whole])}"


def _read(args: Sequence[str], groups: Mapping[str, Sequence[str]]) -> Line:
    models = groups.get("model", ())
    verbs, options, words, last = _sorted(args)
    short = next((verb for verb in verbs if verb in SPELT), None)
    stop = next((verb for verb in verbs if verb in STOPS), None)
    if len(verbs) > (short is not None) + (stop is not None):
        raise ConfigError(
            f"{' '.join(verbs)}: one verb at a time, or {', '.join(STOPS[:-1])} or {STOPS[-1]} before another"
        )
    strays = [word for word in words if not OVERRIDE.fullmatch(word)]
    names = [word for word in strays if not is_option(word)]
    if short is None and names and not there(names[0]) and (said := _a_flow(names[0], stop, words, groups)):
        raise ConfigError(said)
    checkpoint = names and (there(names[0]) or is_source(names[0], models))
    if short is not None or (stop is not None and checkpoint):
        try:
            found, swept = spelt(SPELT[short] if short else STOPPED, short or stop or "", words, last, groups)
        except ConfigError as why:
            raise ConfigError("\n".join(_spaced(words)) or str(why)) from None
        options = [*options, *(["-m"] if swept and "-m" not in options else [])]
        shown = [*filter(None, (stop, "chat" if short == "chat" else None)), *options, *found]
        verb = stop or ("chat" if short == "chat" else "run")
        return Line(verb, options, found, shlex.join([*door(), *shown]))
    words += last
    spaced = _spaced(words)
    if stop is not None and not spaced and names and words[0] == names[0]:
        raise ConfigError(_no_source(stop, names[0], models))
    wrong = spaced or [_stray(words, i, models) for i, w in enumerate(words) if not OVERRIDE.fullmatch(w)]
    if wrong:
        raise ConfigError("\n".join(filter(None, wrong)))
    return Line(stop or "run", options, words)


def apart(args: Sequence[str]) -> tuple[str, list[str]] | None:
    """The verb of `APART` that stands somewhere before any other verb, and all words but it; None: there is none."""
    before = before_dashes(args)
    values = {i + 1 for i, word in enumerate(before) if word in OWN or OPTIONS.get(word)}
    for i, word in enumerate(before):
        if word in VERBS and i not in values:
            return (word, [*args[:i], *args[i + 1 :]]) if word in APART else None
    return None


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
        if is_foreign(word, args):
            raise refusal(args)
        if name in OWN:
            valued = not given and rest and rest[0].partition("=")[0] not in {*OWN, *OPTIONS}
            words.append(f"{word}={rest.pop(0)}" if valued else word)
        elif name in OPTIONS:
            if name in ("--info", "-i") and not given:  # Hydra would take any word that follows
                word = f"{word}={rest.pop(0) if rest[:1] and rest[0] in INFO else INFO[0]}"
            options.append(word)
            if OPTIONS[name] and not given and rest:
                options.append(rest.pop(0))
        elif verbs[-1:] == [BENCH] and word in BENCHMARKS and all(map(_set, words)):
            verbs[-1] = f"{BENCH} {word}"
        elif (word in SHORT and not words) or (word in (*STOPS, *APART) and not {*verbs} & {*SHORT}):
            verbs.append(word)
        else:
            words.append(word)
    return verbs, options, words, last


def _set(word: str) -> bool:
    """Whether a word is an option with its value, or an override."""
    return is_option(word) or bool(OVERRIDE.fullmatch(word))


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


def _a_flow(word: str, stop: str | None, words: Sequence[str], groups: Mapping[str, Sequence[str]]) -> str | None:
    """What to write where somebody typed a flow, or what other programs call it, as a verb; None: it is no such."""
    flows, models = groups.get("flow", ()), groups.get("model", ())
    here = word if word in flows else CHOICES["flow"].get(word, "").partition(" ")[0]
    if here not in (*flows, *SHORT):
        return None
    rest = [other for other in words if other != word]
    before = [*door(), *([stop] if stop else [])]
    if here in SHORT:
        typed = [*before, here, *with_options(SHORT[here], rest, groups)]
    else:
        source = next((w for w in rest if there(w) or is_source(w, models)), "DIR")
        others = [w for w in rest if w != source and not (OPTION.match(w) and w.partition("=")[0] not in OWN)]
        given = f"model={source}" if source in models and not there(source) else f"model.source={source}"
        try:
            found, _ = spelt(
                STOPPED, word, [w for w in [given, *others] if is_option(w) or OVERRIDE.fullmatch(w)], (), groups
            )
        except ConfigError:
            found = [given]
        typed = [*before, given, f"flow={here}", *(word for word in found if word != given)]
    what = "is a flow, and no verb" if here == word else "is no verb here"
    return f"{word!r}: {what}; write\n{shlex.join(typed)}"


def _no_source(stop: str, word: str, models: Sequence[str]) -> str:
    """What is said where a verb that stops has a word behind it that is no checkpoint."""
    around = sorted(p.name for p in Path().iterdir() if not p.name.startswith("."))
    near = nearest(word, [*around, *models, *(verb for verb in SHORT if verb != "chat")])
    meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"{stop} {word}: no such file or folder, and no model or verb of that name{meant}"


def _stray(words: Sequence[str], i: int, models: Sequence[str]) -> str:
    """What a word that sets nothing may have been meant for; nothing where that was said of one before it."""
    word = words[i]
    name = word.partition("=")[0]
    if name in OWN:
        verbs = [verb for verb, short in SHORT.items() if name in short.takes]
        spelling = OWN[name].format("…")
        return f"{name}: is an option of {', '.join(verbs)}; without such a verb write {spelling}"
    if there(word) or "://" in word:
        return f"{word!r}: a checkpoint is given as model.source={word}, or after a verb: weightmill convert {word}"
    if re.fullmatch(r"\w[\w-]*/[\w.-]+", word):
        return (
            f"{word!r}: nothing of that path is here; a model of the hub goes after a verb: weightmill chat hf://{word}"
        )
    if word in models:
        return f"{word!r}: a setting is written key=value; did you mean model={word}?"
    before = next((j for j in range(i, -1, -1) if OVERRIDE.fullmatch(words[j])), None)
    if before is not None and "." in words[before].partition("=")[0] and not did_you_mean(word, VERBS).startswith(";"):
        if before < i - 1:
            return ""
        more = takewhile(lambda w: not OVERRIDE.fullmatch(w) and not is_option(w) and not there(w), words[i:])
        whole = shlex.quote(" ".join([words[before], *more]))
        return f"{word!r}: a setting is written key=value, and a value of several words in quotes:\n{whole}"
    return f"{word!r}: a setting is written key=value{did_you_mean(word, VERBS)}"

"""`bench --against BASELINE` alone: asked is what the baseline was asked, from the command that it recorded."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline import terminal
from pipeline.bench.against import baseline
from pipeline.config.verbs import OWN, VERBS
from pipeline.config.words import OPTIONS, OVERRIDE, before_dashes, is_option
from pipeline.errors import ConfigError
from pipeline.planning.rates import machine

BENCH, AGAINST, OUTPUTS = "bench", "bench.against", "paths.outputs"
ENGINES = "engines"  # what `bench` measures without another word
NOT_AGAIN = ("flow", AGAINST, "bench.tolerance", "bench.folder")  # of the baseline alone


def completed(args: Sequence[str], flows: Sequence[str]) -> list[str]:
    """`args`, and where they are `bench` against a baseline and name no model what the baseline was asked, but for what
    is typed. It is said.

    Args:
        flows: by which a word behind `bench` may name a benchmark, `bench_WORD`.

    Raises:
        ConfigError: the baseline is of another kind of machine or of another benchmark, or does not say what it asked.
        SourceError: there is no such run, or it is no benchmark.
    """
    words = list(before_dashes(args))
    if BENCH not in words or len(words) < len(args) or {"-h", "--help"} & {*words}:
        return [*args]
    values = {i + 1 for i, word in enumerate(words) if word in OWN or OPTIONS.get(word)}
    loose = [w for i, w in enumerate(words) if i not in values and not is_option(w) and not OVERRIDE.fullmatch(w)]
    behind = loose[loose.index(BENCH) + 1 :] if BENCH in loose else []
    named = behind[0] if behind and f"{BENCH}_{behind[0]}" in flows else ENGINES
    given = _given(words)
    if [w for w in loose if w not in (*VERBS, named)] or AGAINST not in given or {"model", "model.source"} & {*given}:
        return [*args]
    outputs = Path(given.get(OUTPUTS, "outputs")).expanduser().absolute()
    known = baseline(given[AGAINST], outputs, machine(), named).get("command", [])
    if not known:
        raise ConfigError(f"{AGAINST}={given[AGAINST]}: does not say what it was asked; name the model, and all else")
    keys = {_key(override): override for override in known}
    added = [o for key, o in keys.items() if key not in (*NOT_AGAIN, *given)]
    if added:
        terminal.say(f"as {given[AGAINST]} was asked: {shlex.join(added)}")
    return [*words, *added]


def _given(words: Sequence[str]) -> Mapping[str, str]:
    """Keys that are set, by an override or an option, and their values."""
    found: dict[str, str] = {}
    for i, word in enumerate(words):
        name, valued, value = word.partition("=")
        if name in OWN:
            found[OWN[name].partition("=")[0]] = value if valued else "".join(words[i + 1 : i + 2])
        elif OVERRIDE.fullmatch(word):
            found[_key(word)] = value
    return found


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]

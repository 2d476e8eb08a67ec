"""Conditions on runs, as typed: `quant=mxfp4`, `kl<0.01`, `state!=complete`; and the order that runs are put in."""

import math
import re
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, NamedTuple

from pipeline.errors import ConfigError, did_you_mean, some
from pipeline.figures import Figure
from pipeline.records.run import STATES, Run, key_of
from pipeline.records.typed import Kind, age, is_number, test

CONDITION = re.compile(r"([\w.@-]+)\s*(!=|<=|>=|==?|<|>)\s*(.*)", re.DOTALL)


class Field(NamedTuple):
    """What a name in a condition stands for.

    Attributes:
        kind: how it is compared.
        of: its value, of a run; None: it has none.
        unit: of a number.
        typed: whether it is a setting, as somebody typed it.
    """

    kind: Kind
    of: Callable[[Run], Any]
    unit: str = ""
    typed: bool = False


FIELDS: dict[str, Field] = {
    "name": Field("word", lambda run: run.name),
    "id": Field("word", lambda run: run.id),
    "state": Field("word", lambda run: run.state),
    "tag": Field("word", lambda run: run.tags),
    "sweep": Field("word", lambda run: run.sweeps),
    "model": Field("word", lambda run: run.model),
    "quant": Field("word", lambda run: run.quant),
    "host": Field("word", lambda run: run.host),
    "started": Field("date", lambda run: run.started),
    "age": Field("number", lambda run: None if run.started is None else age(run.started), "s"),
    "seconds": Field("number", lambda run: run.seconds, "s"),
}
SHORT = {"loss": ("held_out_loss", "training_loss"), "accuracy": ("held_out_accuracy",)}  # the first that a run has
Sweeps = Callable[[str, str], Set[str]]
SEVERAL = ("tag", "sweep")  # of which a run has any number
HIGHER = ("top_1", "sqnr", "accuracy", "tokens_s", "tokens_per_second")  # better, where a record does not say


def is_condition(word: str) -> bool:
    return CONDITION.fullmatch(word) is not None


def meant(name: str) -> tuple[str, ...]:
    """The metrics that a typed name may stand for, as they are typed."""
    return name, *SHORT.get(key_of(name), ())


def matching(runs: Sequence[Run], conditions: Sequence[str], sweeps: Sweeps) -> list[Run]:
    """Those of which all conditions hold.

    Args:
        sweeps: which are meant, by the condition and what is typed in it.

    Raises:
        ConfigError: a condition on what no run has, or on what it cannot be.
    """
    found = list(runs)
    for word in conditions:
        holds = _test(word, runs, sweeps)
        found = [run for run in found if holds(run)]
    return found


def ordered(
    runs: Sequence[Run], by: str, *, reverse: bool = False, known: Callable[[], Sequence[Run]] | None = None
) -> list[Run]:
    """The best first, as `better` of the metric says: the lowest, unless the highest is; names and states by letters,
    dates from the newest. Those that have no such value come last.

    Args:
        known: gives all runs that there are, for what `by` may be when `runs` are none.

    Raises:
        ConfigError: no run has it.
    """
    if not runs:
        if known is not None and (there := known()):
            _value(by, by, there, several=False)
        return []
    kind, value, *_ = _value(by, by, runs, several=False)
    figures = [f for run in runs for name, f in run.metrics.items() if key_of(name) == key_of(by)]
    down = kind == "date" or (by not in FIELDS and (any(f.better == "higher" for f in figures) or _higher(by, figures)))
    having = [(value(run), run) for run in runs]
    lacking = [run for x, run in having if x is None or (isinstance(x, float) and math.isnan(x))]
    rest = [(x, run) for x, run in having if run not in lacking] if lacking else having
    numbers = all(isinstance(x, int | float) for x, _ in rest)
    key: Callable[[tuple[Any, Run]], Any] = (lambda one: one[0]) if numbers else (lambda one: str(one[0]))
    return [run for _, run in sorted(rest, key=key, reverse=down != reverse)] + lacking


def _higher(by: str, figures: Iterable[Any]) -> bool:
    return key_of(by) in HIGHER and not any(f.better for f in figures)


def _test(word: str, runs: Sequence[Run], sweeps: Sweeps) -> Callable[[Run], bool]:
    match = CONDITION.fullmatch(word)
    if match is None:
        raise ConfigError(f"{word}: no condition, such as quant=mxfp4, kl<0.01 or state!=complete")
    name, sign, typed = match[1], "=" if match[2] == "==" else match[2], match[3].strip()
    if not runs and name not in FIELDS:  # and nobody knows what it is
        return lambda run: False
    if name == "sweep" and sign in ("=", "!="):
        those = sweeps(word, typed)
        return lambda run: bool(those & {*run.sweeps}) == (sign == "=")
    kind, value, unit, setting = _value(word, name, runs)
    for state in typed.split(",") if name == "state" else ():
        if not any(c in state for c in "*?[") and state not in STATES:
            raise ConfigError(f"{word}: {state!r} is no state{did_you_mean(state, STATES)}")
    if kind == "number" and setting and not is_number(typed) and sign in ("=", "!="):
        kind = "word"  # of a setting, which may be null
    fits = _one_of(word, sign, typed, kind, unit)
    if name in SEVERAL:
        equals = _one_of(word, "=" if sign == "!=" else sign, typed, kind, unit)
        return lambda run: any(map(equals, value(run))) == (sign != "!=")
    return lambda run: fits(value(run))


def _one_of(word: str, sign: str, typed: str, kind: Kind, unit: str) -> Callable[[Any], bool]:
    """The test of a value: of words `a,b` is either; names may have commas, too."""
    if sign not in ("=", "!=") or "," not in typed or kind != "word":
        return test(word, sign, typed, kind, unit)
    tests = [test(word, "=", part.strip(), kind, unit) for part in (typed, *typed.split(","))]
    return lambda value: any(fits(value) for fits in tests) == (sign == "=")


def _value(word: str, name: str, runs: Sequence[Run], *, several: bool = True) -> Field:
    """What a name in a condition stands for: something of every run, a metric, or a setting.

    Raises:
        ConfigError: for nothing, or for several settings.
    """
    if name in FIELDS and (several or name not in SEVERAL):
        return FIELDS[name]
    key = key_of(name)
    metrics = {key_of(n): f for run in runs for n, f in run.metrics.items()}
    if key in metrics:
        return Field(
            "number", lambda run: next((f.value for n, f in run.metrics.items() if key_of(n) == key), None),
            metrics[key].unit,
        )  # fmt: skip
    if {*SHORT.get(key, ())} & metrics.keys():
        return Field("number", lambda run: next((f.value for f in _short(run, key)), None))
    settings = dict.fromkeys(setting for run in runs for setting in run.config)
    fitting = [name] if name in settings else [s for s in settings if s.endswith(f".{name}")]
    if len(fitting) > 1:  # what is typed goes to stages as well
        fitting = [s for s in fitting if not s.startswith("stages.")] or fitting
    if len(fitting) > 1:
        raise ConfigError(f"{word}: {name!r} is any of {some(fitting)}; write more of it")
    if fitting:
        kind: Kind = "number" if _numeric(runs, fitting[0]) else "word"
        return Field(kind, lambda run: run.config.get(fitting[0]), typed=True)
    if not runs:
        return Field("word", lambda run: None)
    known = [*FIELDS, *metrics]
    parts = name.count(".") + 1  # what is typed may be the end of a setting, and is held against ends as long
    near = {".".join(setting.split(".")[-parts:]): None for setting in settings if not setting.endswith("_")}
    raise ConfigError(f"{word}: no run has a metric or a setting {name!r}{did_you_mean(name, [*known, *near])}")


def unmet(runs: Sequence[Run], conditions: Sequence[str]) -> list[str]:
    """Of the words that conditions ask for and none of the runs has, the ones that there are: a line for each."""
    said = []
    for word in conditions:
        match = CONDITION.fullmatch(word)
        if match is None or match[2] not in ("=", "==") or match[1] in SEVERAL or any(c in match[3] for c in "*?["):
            continue
        kind, value, *_ = _value(word, match[1], runs)
        there = list(dict.fromkeys(str(v) for run in runs if (v := value(run)) not in (None, "")))
        if kind == "word" and match[1] != "state" and not {match[3], *match[3].split(",")} & {*there}:
            said.append(f"{word}: of no run{did_you_mean(match[3], there)}")
    return said


def _short(run: Run, key: str) -> list[Figure]:
    by_key = {key_of(n): f for n, f in run.metrics.items()}
    return [by_key[name] for name in SHORT[key] if name in by_key]


def _numeric(runs: Sequence[Run], setting: str) -> bool:
    values = [run.config.get(setting) for run in runs]
    return any(isinstance(v, int | float) and not isinstance(v, bool) for v in values)

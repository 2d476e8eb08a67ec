"""The error family. Every message says what was given, where, what is allowed and the nearest name.

The command line prints these without a traceback and exits with `exit_code`; anything else that escapes is a bug
in Weightmill or in a plugin, and keeps its traceback.
"""

import difflib
import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.redact import hide

MOST_SHOWN = 20  # lines of a list of problems
MOST_NAMED = 5  # names in a line
NEARER = 0.15  # names that are less alike than the nearest by so much, of 1, are not meant
MOST_HINTS = 5  # of a list of strangers; a hint costs a comparison with every name
MOST_COMPARED = 2_000  # names that a hint is looked for among; those nearest in length where there are more
LONGEST_COMPARED = 200  # characters


class WeightmillError(Exception):
    """Base of every error a user can cause or cure. Its text has no secrets."""

    exit_code = 1

    def __str__(self) -> str:
        return hide(super().__str__())

    def _render_traceback_(self, *_: object) -> list[str]:
        """What a notebook shows (IPython asks for it): what is wrong, without frames, which say nothing of it."""
        problems = getattr(self, "problems", ())
        if len(problems) > 1:
            return [f"error: {len(problems)} problems", *(f"  - {p}" for p in shown([str(p) for p in problems]))]
        return [f"error: {self}"]


class ConfigError(WeightmillError):
    """A key, option, value, stage or pattern that the configuration does not allow."""

    exit_code = 2


class PlanError(WeightmillError):
    """The plan found problems; nothing was read or written. `problems` holds all of them."""

    exit_code = 3

    def __init__(self, problems: "Iterable[Problem]", exit_code: int | None = None):
        self.problems = tuple(problems)
        if exit_code is not None:
            self.exit_code = exit_code
        super().__init__("\n".join(shown([str(p) for p in self.problems[: MOST_SHOWN + 1]], len(self.problems))))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.problems, self.exit_code)


class SourceError(WeightmillError):
    """A checkpoint that is missing, malformed, or changed while it was being read."""

    exit_code = 4


class StorageError(WeightmillError):
    """The output could not be written: disk full, target exists, permission."""

    exit_code = 5


class StageError(WeightmillError):
    """A stage failed while it ran; says which stage and tensor."""

    exit_code = 6


class ValueRangeError(StageError):
    """A weight that the target number format cannot hold (NaN, infinity, out of range)."""


class NotLossless(StageError):
    """A recoding that would change values; says which."""


class Unsupported(Exception):
    """Raised where a kernel is asked for what it does not have, such as a gradient. What can be known beforehand a
    backend declines instead (`pipeline.backends.declines`)."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong: `where` is a config key, a stage or a tensor; `message` says what, and what is allowed."""

    where: str
    message: str

    def __str__(self) -> str:
        return hide(f"{short(self.where)}: {short(self.message, 4000)}")


def shown(lines: Sequence[str], count: int | None = None, most: int = MOST_SHOWN) -> list[str]:
    """The first of many lines, and how many more there are; `count`: of all of them, where `lines` are not all."""
    rest = (len(lines) if count is None else count) - most
    return [*lines[:most], *([f"and {rest:,} more"] if rest > 0 else [])]


def some(names: Sequence[str], count: int | None = None, most: int = MOST_NAMED) -> str:
    """The same in one line: `a, b and 3 more`."""
    return ", ".join(names[:most]) + "".join(
        f" {rest}" for rest in shown([], len(names) if count is None else count, most)
    )


def short(text: str, most: int = LONGEST_COMPARED) -> str:
    """`text`, or its beginning: whoever made the file chose how long its names are."""
    return text if len(text) <= most else f"{text[:most]}…"


def strangers(names: Iterable[str], known: Collection[str], message: str) -> Iterator[Problem]:
    """A problem for each of `names`; the first few say what the nearest of the `known` names is."""
    for i, name in enumerate(names):
        yield Problem(name, message + (did_you_mean(name, known) if i < MOST_HINTS else ""))


def nearest(given: str, allowed: Iterable[str], most: int = 3) -> list[str]:
    """The names in `allowed` closest to `given`, best first, and about as close as that one; quick whatever a hostile
    file calls its tensors."""
    if len(given) > LONGEST_COMPARED:
        return []
    names = list(dict.fromkeys(n for n in allowed if len(n) <= LONGEST_COMPARED))
    if len(names) > MOST_COMPARED:
        names = heapq.nsmallest(MOST_COMPARED, names, key=lambda n: abs(len(n) - len(given)))
    lowered = {n.lower(): n for n in reversed(names)}
    close = difflib.get_close_matches(given.lower(), list(lowered), n=most, cutoff=0.5)
    alike = [difflib.SequenceMatcher(None, c, given.lower()).ratio() for c in close]
    return [lowered[c] for c, ratio in zip(close, alike, strict=True) if ratio > alike[0] - NEARER]


def did_you_mean(given: str, allowed: Iterable[str], most_listed: int = 12) -> str:
    """The tail of an error message: the nearest names, then what is allowed (abridged when long, by letters first)."""
    names = list(dict.fromkeys(allowed))
    if len(names) > most_listed:
        names.sort(key=lambda name: len(name) == 1 and name.isalpha())
    close = nearest(given, names)
    hint = f"; did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
    listed = some([short(name) for name in names[:most_listed]], len(names), most_listed)
    return f"{hint} (allowed: {listed or 'none'})"

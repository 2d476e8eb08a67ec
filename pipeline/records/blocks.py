"""Lines of metrics, thousands at once: parsed and held to the schema in a fraction of the time that one after another
takes, and what comes of them is the same.

Each line is parsed by itself, so that no two make one. Rows of one kind with the same names are checked by columns,
which says too seldom that they are as the schema has them; then each is checked by itself, and named where it is not.
"""

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from operator import eq, itemgetter
from typing import Any

import orjson

from pipeline.errors import short
from pipeline.records import schemas

FEW = 6  # kinds, that are looked for one after another

Row = dict[str, Any]
Fault = tuple[int, str]
"""The number of a line, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one kind that have the same names.

    Attributes:
        kind: theirs.
        rows: in order.
        lines: their numbers in the file.
        columns: name → its values.
    """

    kind: str
    rows: Sequence[Row]
    lines: Sequence[int]
    columns: Mapping[str, Sequence[Any]]

    def apart(self, by: str) -> "Iterator[Group]":
        """Those of each value under a name."""
        for _, rows, lines in _apart(self.columns[by], self.rows, self.lines):
            yield self if len(rows) == len(self.rows) else Group(self.kind, rows, lines, _columns(rows) or {})


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of whole lines.

    Attributes:
        groups: of all of them.
        faults: lines that are none, in order.
    """

    groups: Sequence[Group]
    faults: Sequence[Fault] = ()

    @property
    def rows(self) -> list[Row]:
        """All of them, in order."""
        if len(self.groups) == 1:
            return list(self.groups[0].rows)
        both = [pair for group in self.groups for pair in zip(group.lines, group.rows, strict=True)]
        return [row for _, row in sorted(both, key=itemgetter(0))]

    def of(self, kind: str) -> list[Row]:
        """Those of a kind, in order."""
        return Block([group for group in self.groups if group.kind == kind]).rows


def block(lines: Sequence[bytes], first: int) -> Block:
    """The rows of whole lines; empty ones are left out.

    Args:
        first: number of the first one.
    """
    faults: list[Fault] = []
    numbers: Sequence[int] = range(first, first + len(lines))
    rows, numbers = _parsed(lines, numbers, faults)
    kinds, rows, numbers = _kinds(rows, numbers, faults)
    found = [
        group
        for kind, some, theirs in _apart(kinds, rows, numbers)
        for group in _of_kind(kind, some, theirs, faults)
    ]  # fmt: skip
    return Block(found, sorted(faults))


def _parsed(lines: Sequence[bytes], numbers: Sequence[int], faults: list[Fault]) -> tuple[list[Any], Sequence[int]]:
    try:
        return [*map(orjson.loads, lines)], numbers
    except orjson.JSONDecodeError:
        pass
    found, kept = [], []
    for number, line in zip(numbers, lines, strict=True):
        if not line.strip():
            continue
        try:
            found.append(_value(line))
            kept.append(number)
        except (ValueError, RecursionError):
            faults.append((number, f"is no whole line of JSON: {short(repr(line[:60])[2:-1], 60)}"))
    return found, kept


def _value(line: bytes) -> Any:
    """What a line holds; orjson refuses some that Python reads, as NaN.

    Raises:
        ValueError, RecursionError: it is no JSON.
    """
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line)


def _kinds(
    rows: list[Any], numbers: Sequence[int], faults: list[Fault]
) -> tuple[list[str], list[Row], Sequence[int]]:  # fmt: skip
    """Of each object its kind; all else is a fault."""
    try:
        kinds = [row["kind"] for row in rows]
        if {*map(type, kinds)} <= {str} and {*map(type, rows)} <= {dict}:
            return kinds, rows, numbers
    except (KeyError, TypeError, IndexError):
        pass
    rows, numbers = _sound(rows, numbers, faults)
    return [row["kind"] for row in rows], rows, numbers


def _sound(rows: Sequence[Any], numbers: Sequence[int], faults: list[Fault]) -> tuple[list[Row], list[int]]:
    """Those that are as the schema says."""
    why = [schemas.fault_of_line(row) for row in rows]
    faults += [(n, f"is no row of metrics: {said}") for n, said in zip(numbers, why, strict=True) if said is not None]
    sound = [i for i, said in enumerate(why) if said is None]
    return [rows[i] for i in sound], [numbers[i] for i in sound]


def _of_kind(kind: str, rows: Sequence[Row], numbers: Sequence[int], faults: list[Fault]) -> Iterator[Group]:
    """Groups of rows with the same names, which are as the schema says."""
    columns = _columns(rows)
    if columns is None:
        parts = [(some, theirs) for _, some, theirs in _apart([frozenset(row) for row in rows], rows, numbers)]
    else:
        parts = [(rows, numbers)]
    for some, theirs in parts:
        columns = _columns(some) if len(parts) > 1 else columns
        if columns is None or not schemas.columns_hold(kind, columns):
            some, theirs = _sound(some, theirs, faults)
            columns = _columns(some)
        if some and columns is not None:
            yield Group(kind, some, theirs, columns)


def _columns(rows: Sequence[Row]) -> dict[str, Sequence[Any]] | None:
    """Name → its value in each row; None: they have not all the same names."""
    names = [*rows[0]] if rows else []
    if {*map(len, rows)} != {len(names)}:
        return None
    try:
        return {name: [row[name] for row in rows] for name in names}
    except KeyError:
        return None


def _apart(
    keys: Sequence[Any], rows: Sequence[Row], numbers: Sequence[int]
) -> Iterator[tuple[Any, Sequence[Row], Sequence[int]]]:  # fmt: skip
    """Rows by their keys, in order."""
    if len(distinct := {*keys}) <= FEW:
        for key in dict.fromkeys(keys) if len(distinct) > 1 else ():
            here = [*map(eq, keys, repeat(key))]
            yield key, [*compress(rows, here)], [*compress(numbers, here)]
        if len(distinct) == 1:
            yield keys[0], rows, numbers
        return
    by: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        by.setdefault(key, []).append(i)
    for key, at in by.items():
        yield key, [rows[i] for i in at], [numbers[i] for i in at]

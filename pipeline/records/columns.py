"""Values of metrics as arrays, thousands at once, from a block of rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.figures import Better
from pipeline.records.blocks import Block, Group
from pipeline.records.points import AXES, FIGURE, METRIC, POINT, RECORDED, number

Series = tuple[str, str, int | None]
"""Kind, name, member."""


@dataclass(frozen=True, slots=True)
class Column:
    """Values of one metric, in the order in which they were written.

    Attributes:
        series: which.
        values: float64, as many as `lines`, which are ascending.
        lines: where each of them stands in the file.
        steps, times: of each; None: unknown.
        said: unit and better of the last value whose own line says them; None: none does.
    """

    series: Series
    values: NDArray[np.float64]
    lines: Sequence[int]
    steps: Sequence[int | None]
    times: Sequence[float | None]
    said: tuple[str, Better] | None = None


def columns(block: Block) -> list[Column]:
    """All values of a block: each metric once, by the line of its first value, as they stand there."""
    found: dict[Series, list[tuple[int, Column]]] = {}
    for group in block.groups:
        for place, column in enumerate(_of_group(group)):
            found.setdefault(column.series, []).append((place, column))
    ordered = sorted(found.values(), key=lambda some: min((column.lines[0], place) for place, column in some))
    return [_together([column for _, column in some]) for some in ordered]


def _of_group(group: Group) -> Iterator[Column]:
    if group.kind == METRIC or (group.kind in RECORDED and group.kind != FIGURE):
        return
    parts = [group]
    for by in ("member", *(("name",) if group.kind in (POINT, FIGURE) else ())):
        if by in group.columns:
            parts = [one for part in parts for one in part.apart(by)]
    for part in parts:
        for name in _names(part):
            if (column := _column(part, name)).lines:
                yield column


def _names(group: Group) -> list[str]:
    if group.kind in (POINT, FIGURE):
        return ["value"]
    return [name for name in group.rows[0] if name not in AXES]


def _column(group: Group, name: str) -> Column:
    given, own = group.columns, group.kind in (POINT, FIGURE)
    unknown = [None] * len(group.lines)
    series = group.kind, given["name"][0] if own else name, given.get("member", unknown)[0]
    lines, steps, times = group.lines, given.get("step", unknown), given.get("time", unknown)
    values, kept = _numbers(given[name])
    if kept is not None:
        lines, steps, times = ([part[i] for i in kept] for part in (lines, steps, times))
    last = (kept or [-1])[-1]
    said: Any = (given["unit"][last], given["better"][last] if "better" in given else "") if "unit" in given else None
    return Column(series, values, lines, steps, times, said)


def _numbers(given: Sequence[Any]) -> tuple[NDArray[np.float64], list[int] | None]:
    """Those that are numbers, and where they stand; None: all are."""
    if {*map(type, given)} <= {float, int}:
        try:
            return np.array(given, np.float64), None
        except OverflowError:
            pass
    found = [(i, value) for i, one in enumerate(given) if (value := number(one)) is not None]
    return np.array([value for _, value in found], np.float64), [i for i, _ in found]


def _together(some: Sequence[Column]) -> Column:
    """The values of one metric in rows that have different names, in the order of their lines."""
    if len(some) == 1:
        return some[0]
    lines = np.concatenate([np.asarray(one.lines) for one in some])
    order = np.argsort(lines, kind="stable")
    steps, times = ([x for one in some for x in getattr(one, name)] for name in ("steps", "times"))
    said = [(one.lines[-1], one.said) for one in some if one.said is not None]
    return replace(
        some[0],
        values=np.concatenate([one.values for one in some])[order],
        lines=lines[order].tolist(),
        steps=[steps[i] for i in order],
        times=[times[i] for i in order],
        said=max(said)[1] if said else None,
    )

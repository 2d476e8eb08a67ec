"""In what runs differ, as a table: a setting a row, or, where they are many, a run a row."""

from collections.abc import Sequence
from typing import Any

from pipeline.reporting.compare.differences import ABSENT, KINDS, Difference
from pipeline.reporting.html.markup import el, name
from pipeline.reporting.html.parts import Table

FEW = 12  # runs


def differing(labels: Sequence[str], rows: Sequence[Difference], note: str = "", *, marked: bool = False) -> Table:
    """The table.

    Args:
        labels: of the runs.
        marked: whether values that are not those of the first run are.
    """

    def cell(one: Difference, i: int) -> Any:
        if one.values[i] == ABSENT:
            return None
        return el("mark", name(one.values[i])) if marked and one.values[i] != one.values[0] else one.values[i]

    if len(labels) <= FEW:  # a setting a row reads better
        cells = [(one.name, KINDS[one.kind], *(cell(one, i) for i in range(len(labels)))) for one in rows]
        return Table("What differs", ("", "of", *labels), cells, note)
    across = [(label, *(cell(one, i) for one in rows)) for i, label in enumerate(labels)]
    return Table("What differs", ("run", *(one.name for one in rows)), across, note)

"""What a comparison's page says of quantization errors: groups of tensors down, runs across, each against the
baseline's."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.errors import some
from pipeline.figures import Figure
from pipeline.reporting.compare.compared import Compared
from pipeline.reporting.html.changes import SAID
from pipeline.reporting.html.errors import KINDS, Grid, heat
from pipeline.reporting.html.markup import el, name
from pipeline.reporting.html.parts import Note, Part, Table
from pipeline.reporting.html.strips import WORSE
from pipeline.tensors.stats import ErrorStats

MOST_ACROSS = 60  # runs in the picture
SAME_DB = 0.005  # what is nearer is shown as the same
NOTED = 4  # groups that a note names

Whole = Mapping[tuple[str, int], ErrorStats]
"""Group and number of a row → what was lost there, whatever it is packed as."""


def of_groups(found: Compared, most: int) -> list[Part]:
    """A picture whose numbers have every group, encoding and row, and a note for each row in which a group is worse.

    Args:
        most: rows.
    """
    names = found.names[:most]
    groups: dict[str, list[tuple[int, str, ErrorStats]]] = {}
    whole: dict[tuple[str, int], ErrorStats] = {}
    for (group, encoding), values in found.errors().items():
        for i, e in enumerate(values[:most]):
            if e is not None:
                groups.setdefault(group, []).append((i, encoding, e))
                whole[group, i] = whole.get((group, i), ErrorStats()) + e
    if not groups:
        return []
    worst = {group: max(_lost(whole[group, i]) for i, *_ in given) for group, given in groups.items()}
    grid = Grid()
    drawn = sorted(groups, key=lambda group: -worst[group])[:KINDS]
    for group in drawn:
        for i, row in enumerate(names[:MOST_ACROSS]):
            if (group, i) in whole:
                grid.add(group, row, whole[group, i])
    about = "SQNR in dB of all values of a group; more is better. Of repeats the first counts."
    about += f" The {len(drawn)} of {len(groups)} groups that lost most." if len(drawn) < len(groups) else ""
    title = "Quantization error by group of tensors"
    lines = [
        (el("span", name(group), class_="group"), names[i], encoding or None, _verdict(whole, group, i),
         _sqnr(e), _change(whole, group, i), Figure(e.rmse, form=".3g"), Figure(e.max_abs, form=".3g"),
         Figure(e.count, form=",d"))
        for group, given in groups.items()
        for i, encoding, e in sorted(given, key=lambda one: one[:2])
    ]  # fmt: skip
    heads = ("tensors", "row", "as", "verdict", "SQNR", "change", "RMSE", "max abs", "values")
    table = Table(title, heads, lines, "Verdict and change: of the whole group's SQNR against the baseline's.")
    chart = replace(heat(title, "tensors", "run", grid, about), table=table)
    return [*_notes(names, list(groups), whole), chart]


def _notes(names: Sequence[str], groups: Sequence[str], whole: Whole) -> list[Part]:
    found: list[Part] = []
    for i, row in enumerate(names):
        down = {group: d for group in groups if (d := _down(whole, group, i)) is not None and d < -SAME_DB}
        if down:
            said = some([f"{group} ({_db(down[group])})" for group in sorted(down, key=lambda g: down[g])], most=NOTED)
            of = f"{len(down)} of {sum((group, i) in whole for group in groups)} groups"
            found.append(Note(f"✗ {row} lost more than {names[0]} in {of}: {said}.", "problem"))
    return found


def _down(whole: Whole, group: str, i: int) -> float | None:
    """How far the SQNR of a group is from the baseline's, in dB; None: there is nothing to hold it against."""
    before, after = whole.get((group, 0)), whole.get((group, i))
    if not i or before is None or after is None:
        return None
    return 0.0 if before.sqnr_db == after.sqnr_db else after.sqnr_db - before.sqnr_db


def _change(whole: Whole, group: str, i: int) -> Any:
    change = _down(whole, group, i)
    return None if change is None or not math.isfinite(change) else Figure(change, "dB", "+.2f")


def _verdict(whole: Whole, group: str, i: int) -> Any:
    change = _down(whole, group, i)
    if change is None:
        return "the baseline has none" if i else "baseline"
    if abs(change) < SAME_DB:
        return SAID["same"]
    return el("span", WORSE, class_="worse") if change < 0 else SAID["better"]


def _db(change: float) -> str:
    return f"{change:+.2f} dB" if math.isfinite(change) else "where the baseline is exact"


def _sqnr(e: ErrorStats) -> Any:
    return "exact" if e.sq_error == 0 else Figure(e.sqnr_db, "dB", ".2f")


def _lost(e: ErrorStats) -> float:
    return e.sq_error / e.sq_signal if e.sq_signal else e.sq_error

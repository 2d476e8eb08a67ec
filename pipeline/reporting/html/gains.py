"""What each step of quantizing gained: what is lost of outputs after it, of kinds of tensors and of each of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.figures import Figure
from pipeline.records.gains import ends, mean_shares, steps_of, worst_first
from pipeline.reporting.html import lanes
from pipeline.reporting.html.parts import Part, Table
from pipeline.reporting.manifest import Report
from pipeline.tensors.spec import group_of

TITLE = "lost of outputs"
BY = {
    "products": "by what inputs are multiplied with each other",
    "squares": "by mean squares of inputs",
    "weights": "by weights alone",
}


def charts(report: Report, most: int) -> list[Part]:
    """Kinds of tensors after each step, and every tensor in a table, of which `most` are shown."""
    rows = report.gains
    if not rows:
        return []
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(group_of(str(row["name"])), []).append(row)
    marks = [
        lanes.Mark(kind, step, _share(share)) for kind, of in kinds.items() for step, share in mean_shares(of).items()
    ]
    about = "Σ‖(Q-W)x‖² over Σ‖Wx‖², over what calibration has seen; the mean of the tensors of a kind."
    return [lanes.lanes(TITLE, ("tensor", "after"), marks, about), _tensors(rows, most)]


def _tensors(rows: Sequence[Mapping[str, Any]], most: int) -> Table:
    """Each tensor, those first that lose most in the end."""
    steps, found = steps_of(rows), worst_first(rows)
    cells = []
    for row, gain in found[:most]:
        (first, last), shares = ends(gain), gain.shares
        change = Figure(100 * (last / first - 1), "%", "+z.1f", "lower") if first else None
        after = (_share(shares[step]) if step in shares else None for step in steps)
        cells.append((str(row["name"]), BY.get(gain.by, gain.by), *after, change))
    rest = len(found) - len(cells)
    note = f"The {len(cells):,} that lose most; manifest.json of the run has the other {rest:,}." if rest else ""
    return Table("Lost of outputs by tensor", ("tensor", "measured", *steps, "change"), cells, note)


def _share(share: float) -> Figure:
    return Figure(100 * share, "%", ".3g", "lower")

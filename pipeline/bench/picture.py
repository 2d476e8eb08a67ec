"""Which engines and quants no other beats: how quick, how right and how small at once, as a picture and a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.bench.rows import DECODE
from pipeline.figures import Figure
from pipeline.reporting.compare.front import dominators
from pipeline.reporting.compare.pareto import Pareto

NAME = "pareto.png"
KL, SIZE = "KL", "size"


def front(found: Sequence[Mapping[str, Any]]) -> Pareto:
    """Of the cells that were measured and are right.

    Args:
        found: rows of bench.json.
    """
    cells = [row for row in found if row["state"] == "measured" and not row["wrong"]]
    values = [
        (
            Figure(row["metrics"][DECODE]["value"], "tokens/s", ".1f", "higher"),
            Figure(max(row["quality"]["kl"], 0.0), "nats", ".4f", "lower"),
            Figure(row["nbytes"] / (1 << 20), "MiB", ".1f", "lower"),
        )
        for row in cells
    ]
    names = tuple(f"{row['engine']} {row['quant']}" for row in cells)
    beaten = dominators([(-speed.value, kl.value, size.value) for speed, kl, size in values])
    return Pareto(
        (DECODE, KL, SIZE), ("higher", "lower", "lower"), names, tuple(values),
        tuple(
            (tuple(row["metrics"][DECODE]["rounds"]), (kl.value,), (size.value,))
            for row, (_, kl, size) in zip(cells, values, strict=True)
        ),
        tuple(tuple(names[j] for j in by) for by in beaten),
        tuple((f"{row['engine']} {row['quant']}", row["wrong"] or row["why"]) for row in found if row not in cells),
        tuple(row["quant"] for row in cells),
    )  # fmt: skip


def draw(found: Sequence[Mapping[str, Any]], folder: Path, about: str) -> Path | None:
    """The picture, in `folder`; None: fewer than two cells are right.

    Raises:
        StorageError: it cannot be written.
    """
    of = front(found)
    return of.draw(folder / NAME, about) if len(of.names) > 1 else None

"""Sketches of quantiles beside each other: `python -m plugins.bench.sketches`, from the root of a checkout.

Streams that are hard for one or another, spread over processes (parts, merged), against exact quantiles of NumPy: most
error of the value, relative to it, which DDSketch bounds; most error of the rank, which KLL and REQ bound, with a
probability; points a second; bytes of what is kept; and whether the same stream gives the same sketch again, which a
registry that is rebuilt needs. `ddsketch, one by one` is the library as it comes. It is no test: nothing is checked.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.bench.others import Others
from pipeline.records.sketches import ACCURACY, Sketch
from plugins.bench import written
from plugins.bench.machine import describe, headline

Values = NDArray[np.float64]
LEVELS = np.linspace(0, 1, 201)
PARTS, BATCH, SLOW = 8, 1 << 16, 200_000  # SLOW: points that are taken one by one


def streams(n: int) -> dict[str, Callable[[], Values]]:
    """Hard ones, of `n` points each, the same ones every time."""
    rng = np.random.default_rng
    return {
        "sorted": lambda: np.sort(rng(0).normal(size=n)), "reversed": lambda: np.sort(rng(0).normal(size=n))[::-1],
        "constant": lambda: np.full(n, 3.3), "Cauchy": lambda: rng(1).standard_cauchy(n),
        "Pareto": lambda: rng(2).pareto(0.5, n),
        "mixed signs": lambda: rng(3).lognormal(0, 4, n) * rng(4).choice([-1, 1], n),
    }  # fmt: skip


@dataclass(frozen=True)
class Row:
    """Attributes:
    value, rank: most error of quantiles, relative to the exact value, and in ranks as a share of all.
    rate: points a second.
    nbytes: of the merged sketch, as it is kept.
    same: twice the same stream, the same sketch.
    """

    stream: str
    sketch: str
    points: int
    value: float
    rank: float
    rate: float
    nbytes: int
    same: bool


def ours(parts: Sequence[Values]) -> tuple[list[float], bytes]:
    made = []
    for part in parts:
        made.append(Sketch(ACCURACY))
        for begin in range(0, len(part), BATCH):
            made[-1].add(part[begin : begin + BATCH])
    for other in made[1:]:
        made[0].merge(other)
    return [float(made[0].quantile(q) or 0.0) for q in LEVELS], json.dumps(made[0].to_json()).encode()


def one_by_one(parts: Sequence[Values]) -> tuple[list[float], bytes]:
    from ddsketch import DDSketch

    made = [DDSketch(ACCURACY) for _ in parts]
    for sketch, part in zip(made, parts, strict=True):
        for value in part.tolist():
            sketch.add(value)
    for other in made[1:]:
        made[0].merge(other)
    return [float(made[0].get_quantile_value(q) or 0.0) for q in LEVELS], repr(made[0]).encode()


def of_ranks(make: Callable[[], Any]) -> Callable[[Sequence[Values]], tuple[list[float], bytes]]:
    """A sketch of DataSketches, all of which are used alike."""

    def found(parts: Sequence[Values]) -> tuple[list[float], bytes]:
        made = [make() for _ in parts]
        for sketch, part in zip(made, parts, strict=True):
            sketch.update(part)
        for other in made[1:]:
            made[0].merge(other)
        return [float(v) for v in made[0].get_quantiles(LEVELS.tolist())], bytes(made[0].serialize())

    return found


def sketches() -> dict[str, Callable[[Sequence[Values]], tuple[list[float], bytes]]]:
    import datasketches  # type: ignore[import-untyped]

    return {
        "DDSketch 1 %": ours, "ddsketch, one by one": one_by_one,
        "KLL k=200": of_ranks(lambda: datasketches.kll_doubles_sketch(200)),
        "REQ k=12": of_ranks(lambda: datasketches.req_floats_sketch(12)),
    }  # fmt: skip


def measured(n: int) -> list[Row]:
    found = []
    for stream, make in streams(n).items():
        for name, how in sketches().items():
            values = make()[: SLOW if how is one_by_one else n]
            parts, ordered = np.array_split(values, PARTS), np.sort(values)
            start = time.perf_counter()
            said, kept = how(parts)
            seconds = time.perf_counter() - start
            exact = np.quantile(ordered, LEVELS, method="lower")
            off = np.abs(np.array(said) - exact) / np.maximum(np.abs(exact), np.finfo(float).tiny)
            least, most = (np.searchsorted(ordered, said, side) / len(values) for side in ("left", "right"))
            rank = np.maximum(0, np.maximum(least - LEVELS, LEVELS - most))
            again = how(parts)[1] == kept
            row = Row(
                stream, name, len(values), float(off.max()), float(rank.max()), len(values) / seconds, len(kept), again
            )
            found.append(row)
    return found


def show(rows: Sequence[Row]) -> None:
    from pipeline.reporting import console
    from pipeline.tables import table

    lines = [
        (r.stream, r.sketch, f"{r.value:.2g}", f"{r.rank:.2g}", f"{r.rate / 1e6:.2f}", str(r.nbytes),
         "yes" if r.same else "no")
        for r in rows
    ]  # fmt: skip
    columns = ("stream", "sketch", "value off", "rank off", "10⁶/s", "bytes", "same")
    console.out(table("Quantiles", columns, lines, right=range(2, 6)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=10**7, help="of each stream")
    parser.add_argument("--out", type=Path, default=Path("outputs"), help="where bench_sketches.json goes")
    args = parser.parse_args()
    told = describe()
    print(headline(told))
    with Others() as others:
        rows = measured(args.points)
    show(rows)
    written.write(args.out, "sketches", told, others=others.cores, rows=[asdict(r) for r in rows])


if __name__ == "__main__":
    main()

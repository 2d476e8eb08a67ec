"""What `flow=bench_scale` comes to: a row for each size, and one for how cost grows with it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.bench.fit import LEAST, Growth, fitted
from pipeline.bench.rows import BUSY, Metric
from pipeline.growth import GIVEN, Growing

# A share of every figure that is not sure, however little its rounds lie apart, of which there may be one alone: on an
# idle machine they lie 1 % to 3 % apart (docs/benchmarks/scale.json).
NOISE = 0.02
GROWTH = "growth"  # of a row that is no size
TENFOLD = "× for ten times the {}"


@dataclass(frozen=True)
class Size:
    """What a size came to.

    Attributes:
        size: which.
        state: `measured`, `left out` or `failed`.
        why: unless measured.
        rounds: what each found.
        others: cores that others took.
    """

    size: int
    state: str
    why: str
    rounds: Sequence[Mapping[str, float]]
    others: float


def units(growing: Growing) -> dict[str, str]:
    """All that is measured of it, with units."""
    return {**growing.units, **GIVEN}


def rows(name: str, growing: Growing, sizes: Sequence[Size], tolerance: float) -> list[dict[str, Any]]:
    """As bench.json has them: `engine` is what grows, `quant` the size.

    Args:
        tolerance: by so much an exponent may be above what is expected.
    """
    found = [_size(name, growing, size) for size in sizes]
    measured = [row for row in found if row["state"] == "measured"]
    row: dict[str, Any] = {
        "engine": name, "quant": GROWTH, "state": "measured", "why": "", "wrong": "", "metrics": {}, "fits": {},
        "label": growing.label, "others": max((r["others"] for r in found), default=0.0),
    }  # fmt: skip
    row["busy"] = row["others"] > BUSY
    if len(measured) < LEAST:
        why = f"{len(measured)} sizes were measured; {LEAST} are needed"
        return [*found, row | {"state": "left out", "why": why}]
    wrong = []
    for what, unit in units(growing).items():
        if (expected := growing.expected.get(what)) is None:
            continue
        metrics = [r["metrics"][what] for r in measured]
        spreads = [max(m["spread"], NOISE) for m in metrics]
        growth = fitted([r["size"] for r in measured], [m["value"] for m in metrics], spreads, start=expected > 0)
        fault = too_much(growth, expected, tolerance)
        row["fits"][what] = {
            **_finite(asdict(growth)),
            "expected": expected,
            "wrong": fault,
            "unit": unit,
            "size": measured[-1]["size"],
        }
        tenfold = Metric(10**growth.exponent, "×", "lower", math.log(10) * growth.error, (10**growth.exponent,))
        row["metrics"][f"{what} {TENFOLD.format(growing.label)}"] = asdict(tenfold)
        wrong += [f"{what}: {fault}"] if fault else []
    return [*found, row | {"wrong": "; ".join(wrong)}]


def too_much(growth: Growth, expected: float, tolerance: float) -> str:
    """Why a cost grows faster than it should; empty: it does not, or that is not sure."""
    said = [
        f"grows as size^{exponent:.2f} {where}, and ^{expected:g} is expected"
        for exponent, error, where in (
            (growth.exponent, growth.error, "over all sizes"), (growth.end, growth.end_error, "in the end"),
        )
        if exponent - growth.sure * error > expected + tolerance
    ]  # fmt: skip
    return said[0] if said else ""


def _size(name: str, growing: Growing, size: Size) -> dict[str, Any]:
    metrics = {}
    if size.state == "measured":
        metrics = {
            what: asdict(Metric.of([float(r[what]) for r in size.rounds], unit, "lower"))
            for what, unit in units(growing).items()
        }
    return {
        "engine": name, "quant": growing.show(size.size), "size": size.size, "state": size.state, "why": size.why,
        "wrong": "", "metrics": metrics, "others": size.others, "busy": size.others > BUSY,
    }  # fmt: skip


def _finite(fields: Mapping[str, float]) -> dict[str, Any]:
    return {name: value if math.isfinite(value) else None for name, value in fields.items()}

"""How cost against size is shown: a line for each that was fitted, and all that was measured."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.bench.growths import GROWTH
from pipeline.bench.tables import BUSY
from pipeline.figures import Cell, Figure
from pipeline.growth import GIVEN
from pipeline.stage import Table
from pipeline.units import show_bytes

NAMES = {"seconds": "seconds", "cpu": "CPU seconds", "peak": "peak memory", "token": "a token", "prompt": "a prompt"}
FITS = ("", "cost", "grows as", "in the end", "expected", "start", "and then")
SIZES = ("", "size", "whole process", "on a CPU", "peak memory", "of it", "others, cores")
PREFIXES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
VAGUE = 1.0  # standard error of an exponent that says nothing
PER = {"tokens": 1, "layers": 1, "sequences": 1, "tensors": 1, "GB": 10**9}
"""Label → sizes in one of it."""


def figures(found: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """Exponents."""
    return {
        f"exponent, {row['engine']} {what}": Figure(fit["exponent"], "", ".2f", "lower")
        for row in found
        for what, fit in row.get("fits", {}).items()
    }


def tables(found: Sequence[Mapping[str, Any]], worse: Sequence[str], against: str | None) -> tuple[Table, ...]:
    """Growth, sizes, what was not measured, and what got worse."""
    fits = [tuple(_fit(row, what, fit)) for row in found for what, fit in row.get("fits", {}).items()]
    measured = [row for row in found if row["state"] == "measured" and row["quant"] != GROWTH]
    left = [(row["engine"], row["quant"], row["state"], row["why"]) for row in found if row["state"] != "measured"]
    shown = []
    if fits:
        shown.append(Table("Growth: start + factor · size^exponent ± its standard error", FITS, tuple(fits)))
    if measured:
        busy = f" ({BUSY} others used the machine meanwhile)" if any(row["busy"] for row in measured) else ""
        shown.append(Table(f"Sizes, median ± spread of the rounds{busy}", SIZES, tuple(map(_size, measured))))
    if left:
        shown.append(Table("Not measured", ("", "size", "", "why"), tuple(left)))
    if worse:
        shown.append(Table(f"Worse than {against}", (), tuple((f"✗ {text}",) for text in worse)))
    return tuple(shown)


def _fit(row: Mapping[str, Any], what: str, fit: Mapping[str, Any]) -> Iterator[Cell]:
    mark = "✗ " if fit["wrong"] else ""
    yield f"{mark}{row['engine']}"
    yield NAMES.get(what, what)
    yield grows(fit)
    yield "–" if fit["end_error"] is None else f"^{fit['end']:.2f} ± {fit['end_error']:.2f}"
    yield f"^{fit['expected']:g}"
    yield value(fit["start"], fit["unit"]) if fit["start"] else "–"
    yield ahead(fit, row["label"])


def grows(fit: Mapping[str, Any]) -> str:
    """The exponent, where there is one: of what hardly grows beside its start any would do."""
    if fit["error"] > VAGUE:
        return "not seen to grow"
    return f"size^{fit['exponent']:.2f} ± {fit['error']:.2f}"


def ahead(fit: Mapping[str, Any], label: str) -> str:
    """What one more costs, where that is the same at all sizes: the exponent is 1 within its error."""
    if not fit["expected"] or fit["error"] > VAGUE or abs(fit["exponent"] - 1) > max(3 * fit["error"], 0.05):
        return ""
    at = fit["size"]
    slope = fit["factor"] * fit["exponent"] * at ** (fit["exponent"] - 1) * PER.get(label, 1)
    return f"{value(slope, fit['unit'])} a {label.removesuffix('s')}"


def _size(row: Mapping[str, Any]) -> tuple[Cell, ...]:
    own = [what for what in row["metrics"] if what not in GIVEN]
    of_it = ", ".join(f"{NAMES.get(w, w)} {_measured(row['metrics'][w])}" for w in own)
    metrics = row["metrics"]
    others = f"{row['others']:.1f}{BUSY if row['busy'] else ''}"
    return row["engine"], row["quant"], *(_measured(metrics[what]) for what in GIVEN), of_it, others


def _measured(metric: Mapping[str, Any]) -> str:
    apart = f" ± {metric['spread']:.0%}" if len(metric["rounds"]) > 1 else ""
    return f"{value(metric['value'], metric['unit'])}{apart}"


def value(number: float, unit: str) -> str:
    """Three digits, with a unit: bytes, or seconds and what is less."""
    if unit == "B":
        return show_bytes(number)
    if unit != "s":
        return f"{number:.3g} {unit}".strip()
    size, name = next(((s, u) for s, u in PREFIXES if number >= s), PREFIXES[-1])
    return f"{number / size:.3g} {name}" if number < 1000 else f"{number:.0f} s"


def said(growing: Mapping[str, str]) -> Any:
    """Shows what a round measured, in a line.

    Args:
        growing: name → unit.
    """
    return lambda found: ", ".join(f"{NAMES.get(w, w)} {value(float(found[w]), unit)}" for w, unit in growing.items())

"""How a benchmark is shown, and which of its figures are compared with those of other runs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.bench.leaks import leak
from pipeline.bench.rows import DECODE
from pipeline.figures import Cell, Figure
from pipeline.stage import Table
from pipeline.units import show_bytes

BUSY = "*"


def figures(found: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """Decoding of one sequence, of every cell."""
    return {
        f"decode, {row['engine']} {row['quant']}": Figure(m["value"], m["unit"], ".1f", m["better"])
        for row in found
        for name, m in row["metrics"].items()
        if name == DECODE
    }


def tables(found: Sequence[Mapping[str, Any]], worse: Sequence[str], against: str | None) -> tuple[Table, ...]:
    """Speed, quality, what was not measured, and what got worse."""
    measured = [row for row in found if row["state"] == "measured"]
    return (
        Table(titled("Speed", measured), *_speed(measured)),
        Table("Quality, beside the reference: the weights as they are, in float32", *_quality(measured)),
        *_of_memory(measured),
        *rest(found, ("engine", "quant"), worse, against),
    )


def titled(what: str, measured: Sequence[Mapping[str, Any]]) -> str:
    """The title of a table of figures."""
    busy = f" ({BUSY} others used the machine meanwhile)" if any(row["busy"] for row in measured) else ""
    return f"{what}, median ± spread of the rounds{busy}"


def rest(
    found: Sequence[Mapping[str, Any]], heads: tuple[str, str], worse: Sequence[str], against: str | None
) -> Iterator[Table]:
    """What was not measured, and what got worse.

    Args:
        heads: what is called `engine` and `quant` in the rows.
    """
    left = [(row["engine"], row["quant"], row["state"], row["why"]) for row in found if row["state"] != "measured"]
    left += [("energy", "", "", why) for why in sorted({row.get("no_joules") or "" for row in found} - {""})]
    if left:
        yield Table("Not measured", (*heads, "", "why"), tuple(left))
    if worse:
        yield Table(f"Worse than {against}", (), tuple((f"✗ {text}",) for text in worse))


def apart(metric: Mapping[str, Any]) -> str:
    """How far rounds lie apart; of one nothing."""
    return f" ± {metric['spread']:.0%}" if len(metric["rounds"]) > 1 else ""


def _speed(measured: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]:
    names = [name for name in measured[0]["metrics"] if name != "perplexity"] if measured else []
    units = {name: measured[0]["metrics"][name]["unit"] for name in names}
    heads = [f"{name}, {unit}" if unit not in ("", "B") else name for name, unit in units.items()]
    batches = list(measured[0]["latency_ms"]) if measured else []
    shares = [name for name in names if any(name in row["of_limits"] for row in measured)]
    heads += [f"{name}, of {'reading' if name == DECODE else 'multiplying'}" for name in shares]
    columns = ("engine", "quant", *heads, *(f"ms a token × {b}: p50 / p90 / p99" for b in batches), "others, cores")
    return columns, tuple(tuple(_speed_of(row, names, shares, batches)) for row in measured)


def _speed_of(
    row: Mapping[str, Any], names: Sequence[str], shares: Sequence[str], batches: Sequence[str]
) -> Iterator[Cell]:
    yield f"✗ {row['engine']}" if row["wrong"] else row["engine"]
    yield row["quant"]
    for name in names:
        metric = row["metrics"][name]
        value = show_bytes(metric["value"]) if metric["unit"] == "B" else f"{metric['value']:.4g}"
        yield f"{value}{apart(metric)}"
    for name in shares:
        yield f"{row['of_limits'][name]:.0%}" if name in row["of_limits"] else "–"
    for batch in batches:
        yield " / ".join(f"{ms:.3g}" for ms in row["latency_ms"][batch].values())
    yield f"{row['others']:.1f}{BUSY if row['busy'] else ''}"


def _of_memory(measured: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    if any(row["leak"] for row in measured):
        yield Table("Memory, generation by generation", *_leaks(measured))


def _leaks(measured: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]:
    columns = ("engine", "quant", "generations", "KiB more with each", "verdict")
    return columns, tuple(
        (row["engine"], row["quant"], str(found["generations"]), _kib(found), f"✗ {said}" if said else "stays")
        for row in measured
        if (found := row["leak"])
        for said in (leak(found),)
    )


def _kib(found: Mapping[str, float]) -> str:
    return f"{found['slope'] / 1024:.2f} ± {found['error'] / 1024:.2f}"


def _quality(measured: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]:
    columns = ("engine", "quant", "weights as", "size", "perplexity", "KL, nats", "top-1", "greedy", "verdict")
    return columns, tuple(tuple(_quality_of(row)) for row in measured)


def _quality_of(row: Mapping[str, Any]) -> Iterator[Cell]:
    q = row["quality"]
    yield from (row["engine"], row["quant"], row["form"], show_bytes(row["nbytes"]))
    yield "–" if q["perplexity"] is None else f"{q['perplexity']:.3f}"
    yield "–" if q["kl"] is None else f"{q['kl']:.4f}"
    yield f"{100 * q['top1']:.1f} %"
    yield f"{q['greedy']} of {q['of']}"
    yield f"✗ wrong: {row['wrong']}" if row["wrong"] else "right"

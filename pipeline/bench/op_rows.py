"""What the rounds of a benchmark of ops come to, as rows of bench.json, tables and figures."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pipeline.bench import tables as common
from pipeline.bench.limits import said as limits_said
from pipeline.bench.rows import BUSY, Metric, unmeasured
from pipeline.figures import Cell, Figure
from pipeline.stage import Table

EVERY = "every op"
WALL = "µs by the host's clock"  # of calls that follow each other without waiting
Row = dict[str, Any]


def of_runner(name: str, rounds: Sequence[Mapping[str, Any]], limits: Mapping[str, float], others: float) -> list[Row]:
    """A row a case. What is wrong has no figures: it is not quick, whatever it took.

    Args:
        rounds: what `pipeline.bench.op.Measure` found in each.
        limits: bytes and operations a second that the machine reaches.
    """
    found = []
    for case, first in rounds[0]["cases"].items():
        seen = [r["cases"][case] for r in rounds]
        more = {key: first[key] for key in ("op", "case", "flops", "nbytes")} | {"versions": rounds[0]["versions"]}
        if "device" in rounds[0]:
            more["device"] = rounds[0]["device"]
        if why := next((s["failed"] for s in seen if "failed" in s), ""):
            found.append(unmeasured(name, case, "failed", why) | more)
        elif "declined" in first:
            found.append(unmeasured(name, case, "unsupported", first["declined"]) | more)
        else:
            wrong = next((s["wrong"] for s in seen if s["wrong"]), "")
            time = Metric.of([1e6 * s["s"] for s in seen], "µs", "lower")
            if timed := _timed([s["timed"] for s in seen if "timed" in s]):
                more["timed"] = timed
            figures = {} if wrong else {"metrics": {"time": asdict(time)}, **_rates(first, time.value, limits)}
            busy = {"others": others, "busy": others > BUSY}
            found.append(
                unmeasured(name, case, "measured", "") | more | busy | figures
                | {"wrong": wrong, "off": max(s["off"] for s in seen)}
            )  # fmt: skip
    return found


def _timed(rounds: Sequence[Mapping[str, Any]]) -> Row:
    """How a device's own time was taken, and beside it µs of a call by the host's clock; empty: it was not asked."""
    if not rounds:
        return {}
    how = "; ".join(dict.fromkeys(r["how"] for r in rounds))
    return {"how": how, "wall": 1e6 * statistics.median(r["wall"] for r in rounds), "calls": rounds[0]["calls"]}


def _rates(case: Mapping[str, Any], micros: float, limits: Mapping[str, float]) -> Row:
    read, work = 1e6 * case["nbytes"] / micros, 1e6 * case["flops"] / micros
    return {"rates": {
        "bytes": read, "flops": work, "of_read": read / limits["read"], "of_multiply_add": work / limits["multiply_add"]
    }}  # fmt: skip


def said(found: Mapping[str, Any]) -> str:
    """What a process found, in a line."""
    if "cases" not in found:
        return limits_said(found)
    cases = found["cases"].values()
    wrong, failed = (sum(bool(case.get(what)) for case in cases) for what in ("wrong", "failed"))
    told = f"{sum('s' in case for case in cases)} cases"
    return told + (f", {wrong} wrong" if wrong else "") + (f", {failed} failed" if failed else "")


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """All cases of an op that a backend has, one after the other: milliseconds."""
    totals: dict[str, float] = {}
    for found in rows:
        if "time" in found["metrics"]:
            name = f"{found['op']}, {found['engine']}"
            totals[name] = totals.get(name, 0.0) + found["metrics"]["time"]["value"] / 1e3
    return {name: Figure(value, "ms", ".3f", "lower") for name, value in totals.items()}


def tables(rows: Sequence[Mapping[str, Any]], worse: Sequence[str], against: str | None) -> tuple[Table, ...]:
    """One an op, its cases with every backend, the quickest first; what was not measured; what got worse."""
    measured = [r for r in rows if r["state"] == "measured"]
    shown = []
    for op in dict.fromkeys(r["op"] for r in measured):
        these = [r for r in measured if r["op"] == op]
        cases = {case: i for i, case in enumerate(dict.fromkeys(r["case"] for r in these))}
        these.sort(key=lambda r: (cases[r["case"]], bool(r["wrong"]), _micros(r)))
        columns = ("case", "backend", "µs", "GB/s", "of reading", "GFLOP/s", "of multiplying", "verdict")
        title = common.titled(op, these)
        if device := next((r["device"]["name"] for r in these if "device" in r), ""):
            ways = dict.fromkeys(r["timed"]["how"] for r in these if "timed" in r)
            title = f"{title}; {device}: {'; '.join(ways)}"
        shown.append(Table(title, (*columns, *([WALL] if device else ())), tuple(
            (*_cells(r), *([_wall(r)] if device else ())) for r in these
        )))  # fmt: skip
    return (*shown, *common.rest(rows, ("backend", "case"), worse, against))


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _micros(found: Mapping[str, Any]) -> float:
    return float(found["metrics"]["time"]["value"]) if found["metrics"] else 0.0


def _wall(found: Mapping[str, Any]) -> Cell:
    return _shown(found["timed"]["wall"]) if "timed" in found and not found["wrong"] else "–"


def _cells(found: Mapping[str, Any]) -> Iterator[Cell]:
    yield found["case"]
    yield f"✗ {found['engine']}" if found["wrong"] else found["engine"]
    if found["wrong"]:
        yield from ("–",) * 5
        yield f"✗ wrong: {found['wrong']}"
        return
    time, rates = found["metrics"]["time"], found["rates"]
    yield f"{_shown(time['value'])}{common.apart(time)}{common.BUSY if found['busy'] else ''}"
    yield f"{rates['bytes'] / 1e9:.3g}"
    yield f"{rates['of_read']:.0%}"
    yield _shown(rates["flops"] / 1e9) if rates["flops"] else "–"
    yield f"{rates['of_multiply_add']:.0%}" if rates["flops"] else "–"
    yield "right"

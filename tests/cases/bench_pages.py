"""A page of benchmarks read back, without what wrote it: every figure of it beside that of the `bench.json`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
FIGURE = re.compile(r"(?:\*\*✗\*\* )?(-?[\d.,]+(?:e[+-]\d+)?)(?: ([KMGT]?i?B))?(?: ± (\d+)%)?(\*)?")
LATENCIES = "ms a token: p50 / p90 / p99"
JUDGED = ("size", "perplexity", "KL, nats", "top-1, %", "greedy")

Table = list[list[str]]


def tables(text: str) -> dict[str, list[Table]]:
    """Tables by heading, a list of cells for each line; the line below the head is left out."""
    found: dict[str, list[Table]] = {}
    name, before = "", ""
    for line in text.splitlines():
        if line.startswith("## "):
            name = line.removeprefix("## ")
            found[name] = []
        elif line.startswith("| ") and name:
            cells = [
                c.replace("\\|", "|") for c in re.split(r" (?<!\\)\| ", line.removeprefix("| ").removesuffix(" |"))
            ]
            if not before.startswith("|"):
                found[name].append([])
            if set("".join(cells)) != {"-"}:
                found[name][-1].append(cells)
        before = line
    return found


def faults(text: str, records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Where a page says something else than the records, or something that they do not say, or leaves something out."""
    shown = tables(text)
    said = [f"{name}: is on the page or among the records alone" for name in shown.keys() ^ records.keys()]
    for name in shown.keys() & records.keys():
        said += [f"{name}: {fault}" for fault in _faults(shown[name], records[name])]
    return said


def _faults(shown: Sequence[Table], record: Mapping[str, Any]) -> Iterator[str]:
    about = dict(row[:2] for row in shown[0])
    if isinstance(machine := record["machine"], Mapping):
        yield from _differs("load", about["load at its end"], machine["load"])
        yield from _differs("cores", about["cores of each process"], machine["threads"])
    if about.get("date", "") != record.get("when", "")[:10]:
        yield f"date {about['date']}"
    expected = {key: value for row in record["rows"] if row["state"] == "measured" for key, value in _figures(row)}
    for table in shown[1:]:
        for place, cell in _cells(table):
            if place not in expected and cell != "–":
                yield f"{place}: {cell} is on the page alone"
            elif place in expected:
                yield from _held(place, cell, expected.pop(place))
    yield from (f"{key}: is missing" for key in expected)


def _figures(row: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str, str], Any]]:
    who = row["engine"], row["quant"]
    for name, metric in row["metrics"].items():
        if not (name == "perplexity" and "quality" in row):
            unit = "" if metric["unit"] in ("", "B") else f", {metric['unit']}"
            spread = metric["spread"] if len(metric["rounds"]) > 1 else None
            yield (*who, name + unit), (metric["value"], spread, row["busy"])
    for batch, times in row.get("latency_ms", {}).items():
        yield (*who, f"× {batch}"), list(times.values())
    if q := row.get("quality"):
        top = None if q["top1"] is None else 100 * q["top1"]
        values = (row["nbytes"], q["perplexity"], q["kl"], top, [q["greedy"], q["of"]])
        yield from (((*who, name), value) for name, value in zip(JUDGED, values, strict=True))
    yield (*who, "verdict"), row["wrong"]


def _cells(table: Table) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Who, with what, which, and the cell: of a table with a line a row, or with a column an engine."""
    head, *rows = table
    if head[0] == "not measured" or head[0].startswith("worse than "):
        return
    for row in rows:
        if head[0] in ("", LATENCIES):
            yield from (((row[0].strip("*✗ "), row[1], name), c) for name, c in zip(head[2:], row[2:], strict=True))
        else:
            for engine, cell in zip(head[1:], row[1:], strict=True):
                if any(c.isdigit() for c in cell):
                    yield (engine, row[0], head[0]), cell
                if cell != "–":
                    yield (engine, row[0], "verdict"), "✗" if "✗" in cell else "right"


def _held(place: Any, cell: str, value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if cell not in ("right" if not value else f"**✗ wrong**: {value}", "✗" if value else "right"):
            yield f"{place}: {cell!r}, and {value!r} is what was found"
    elif isinstance(value, list):
        given = re.split(r" / | of ", cell)
        if len(given) != len(value):
            yield f"{place}: {cell}"
        for one, other in zip(given, value, strict=False):
            yield from _differs(place, one, other)
    elif isinstance(value, tuple):
        yield from _with_spread(place, cell, *value)
    else:
        yield from _differs(place, cell, value)


def _with_spread(place: Any, cell: str, value: float, spread: float | None, busy: bool) -> Iterator[str]:
    if (match := FIGURE.fullmatch(cell)) is None:
        yield f"{place}: {cell!r} is no figure"
        return
    yield from _differs(place, f"{match[1]} {match[2] or ''}".strip(), value)
    if (match[3] is None) != (spread is None) or bool(match[4]) != busy:
        yield f"{place}: {cell}: its spread or its mark"
    elif spread is not None:
        yield from _differs(f"{place}, spread", match[3], 100 * spread)


def _differs(place: Any, cell: str, value: float | None) -> Iterator[str]:
    """Nothing where `cell` is `value` in as many digits as it shows."""
    if value is None:
        if cell != "–":
            yield f"{place}: {cell}, and nothing is known"
        return
    match = FIGURE.fullmatch(cell)
    if match is None:
        yield f"{place}: {cell!r} is no figure"
        return
    digits = match[1].replace(",", "")
    mantissa, _, exponent = digits.partition("e")
    last = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2])) * UNITS[match[2] or ""]
    given = float(digits) * UNITS[match[2] or ""]
    if abs(given - value) > 0.5001 * last:
        yield f"{place}: {cell}, and {value:.6g} was measured"

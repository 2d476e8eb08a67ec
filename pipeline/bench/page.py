"""What benchmarks found as a page of Markdown: every figure is out of a `bench.json`, whichever benchmark wrote it."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.units import show_bytes, show_seconds

BUSY, WRONG, NONE = "*", "✗", "–"
QUALITY = ("perplexity", "KL, nats", "top-1, %", "greedy", "verdict")
SHOWN_BESIDE = "perplexity"  # a metric that the columns of quality have
GROUPED = 1000  # from here on digits are in groups, and no fraction is shown

Row = Mapping[str, Any]
Column = tuple[str, str]
"""Of a metric: name and unit."""


@dataclass(frozen=True)
class Section:
    """What a `bench.json` has, by the name that its command has in the list of benchmarks."""

    name: str
    record: Mapping[str, Any]


def page(sections: Sequence[Section], command: str) -> str:
    """The whole page.

    Args:
        command: that writes it.
    """
    head = [
        "# Benchmarks", "",
        f"Written by `{command}` out of `docs/benchmarks/`, never by hand. A figure is the median of the rounds ± the",
        f"standard deviation of these. `{BUSY}`: other processes took more than a tenth of a core meanwhile.",
        f"**{WRONG}**: it computes something else, and counts for nothing however quick it is.",
        "[docs/bench.md](docs/bench.md) says how all of it is measured.", "",
    ]  # fmt: skip
    return "\n".join([*head, *(line for section in sections for line in (*_section(section), ""))]).rstrip("\n") + "\n"


def _section(section: Section) -> Iterator[str]:
    record = section.record
    rows = record["rows"]
    measured = [row for row in rows if row["state"] == "measured"]
    yield from (f"## {section.name}", "", f"    weightmill {shlex.join(_typed(record))}", "")
    yield from _table(("", ""), [(key, text) for key, text in _about(record) if text])
    for group, columns in grouped(measured):
        yield ""
        yield from _pivoted(group, *columns) if len(columns) == 1 and _crossed(group) else _listed(group, columns)
    if latencies := [row for row in measured if row.get("latency_ms")]:
        yield ""
        yield from _latencies(latencies)
    if left := [row for row in rows if row["state"] != "measured"]:
        yield ""
        yield from _table(
            ("not measured", "", "", "why"), [(r["engine"], r["quant"], r["state"], r["why"]) for r in left]
        )
    if worse := record.get("regressions"):
        yield ""
        yield from _table((f"worse than {record['against']}",), [(text,) for text in worse])


def _typed(record: Mapping[str, Any]) -> list[str]:
    """The command as it may be typed again, whatever it was held against."""
    left_out = ("bench.against", "bench.folder")
    return [o for o in record.get("command", ()) if o.lstrip("+~").partition("=")[0] not in left_out]


def _about(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """When and where, with what, and how busy that was."""
    machine, rows = record["machine"], record["rows"]
    yield "date", record.get("when", "")[:10]
    if isinstance(machine, Mapping):
        yield "machine", f"{machine['kind']}, {show_bytes(machine['memory'])} of memory, {machine['system']}"
        yield "cores of each process", str(machine["threads"])
        yield "versions", ", ".join([f"Python {machine['python']}", *_versions(rows)])
        yield "load at its end", f"{machine['load']:.2f}"
    else:
        yield "machine", str(machine)
    for device in dict.fromkeys(row["device"]["name"] for row in rows if row.get("device")):
        clocks = {row["device"].get("clocks.max.sm", "") for row in rows if row.get("device", {}).get("name") == device}
        yield "device", ", ".join([device, *sorted(f"at most {clock}" for clock in clocks if clock)])
    for how in dict.fromkeys(row["timed"]["how"] for row in rows if row.get("timed")):
        yield "time of", how
    if others := [row["others"] for row in rows if row["state"] == "measured"]:
        yield "others took, at most", f"{max(others):.2f} cores"
    for name, limit in record.get("limits", {}).items():
        yield f"limit: {name.replace('_', ' ')}, G a second", number(limit / 1e9)
    if "seconds" in record:
        own = record.get("own_seconds")
        beside = "" if own is None else f", {show_seconds(own)} of that beside what is measured"
        yield "took", f"{show_seconds(record['seconds'])}{beside}"


def _versions(rows: Iterable[Row]) -> list[str]:
    known = {f"{name} {version}" for row in rows for name, version in row.get("versions", {}).items()}
    return sorted(known, key=str.lower)


def grouped(rows: Sequence[Row]) -> Iterator[tuple[list[Row], list[Column]]]:
    """Rows that have the same metrics, or less of them, stand in one table."""
    groups: list[tuple[list[Row], list[Column]]] = []
    for row in rows:
        own = [(name, m["unit"]) for name, m in row["metrics"].items()]
        for members, columns in groups:
            if {*own} <= {*columns} or {*columns} <= {*own}:
                members.append(row)
                columns += [c for c in own if c not in columns]
                break
        else:
            groups.append(([row], own))
    yield from groups


def _listed(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """A line a row: its figures, and how right it is beside them."""
    judged = any("quality" in row for row in rows)
    shown = [c for c in columns if not (judged and c[0] == SHOWN_BESIDE)]
    heads = ["", "", *map(_head, shown), *(["size", *QUALITY] if judged else ["verdict"])]
    return list(_table(heads, [tuple(_cells(row, shown, judged=judged)) for row in rows]))


def _cells(row: Row, columns: Sequence[Column], *, judged: bool) -> Iterator[str]:
    yield f"**{WRONG} {row['engine']}**" if row["wrong"] else row["engine"]
    yield row["quant"]
    for name, unit in columns:
        metric = row["metrics"].get(name)
        yield NONE if metric is None or metric["unit"] != unit else _value(metric, row)
    if judged:
        q = row["quality"]
        yield show_bytes(row["nbytes"])
        yield NONE if q["perplexity"] is None else f"{q['perplexity']:.3f}"
        yield NONE if q["kl"] is None else f"{q['kl']:.4f}"
        yield f"{100 * q['top1']:.1f}"
        yield f"{q['greedy']} of {q['of']}"
    yield f"**{WRONG} wrong**: {row['wrong']}" if row["wrong"] else "right"


def _crossed(rows: Sequence[Row]) -> bool:
    """Whether several of its rows are of one case, so that they stand beside each other, and none is wrong in words."""
    return len({row["quant"] for row in rows}) < len(rows)


def _pivoted(rows: Sequence[Row], column: Column) -> list[str]:
    """A line a case, a column an engine."""
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    cases: dict[str, dict[str, Row]] = {}
    for row in rows:
        cases.setdefault(row["quant"], {})[row["engine"]] = row
    body = [(case, *(_crossing(found.get(engine), column[0]) for engine in engines)) for case, found in cases.items()]
    return list(_table([_head(column), *engines], body))


def _crossing(row: Row | None, name: str) -> str:
    if row is None:
        return NONE
    if row["wrong"]:
        return f"**{WRONG}** {_value(row['metrics'][name], row)}" if name in row["metrics"] else f"**{WRONG}**"
    return _value(row["metrics"][name], row)


def _value(metric: Mapping[str, Any], row: Row) -> str:
    value = show_bytes(metric["value"]) if metric["unit"] == "B" else number(metric["value"])
    apart = f" ± {metric['spread']:.0%}" if len(metric["rounds"]) > 1 else ""
    return f"{value}{apart}{BUSY if row['busy'] else ''}"


def number(value: float) -> str:
    """Four digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= GROUPED else f"{value:.4g}"


def _latencies(rows: Sequence[Row]) -> list[str]:
    batches = list(dict.fromkeys(b for row in rows for b in row["latency_ms"]))
    heads = ["ms a token: p50 / p90 / p99", "", *(f"× {batch}" for batch in batches)]
    body = [
        (row["engine"], row["quant"], *(
            " / ".join(f"{ms:.3g}" for ms in row["latency_ms"][b].values()) if b in row["latency_ms"] else NONE
            for b in batches
        ))
        for row in rows
    ]  # fmt: skip
    return list(_table(heads, body))


def _head(column: Column) -> str:
    name, unit = column
    return name if unit in ("", "B") else f"{name}, {unit}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _line(heads)
    yield _line(["---"] * len(heads))
    yield from map(_line, rows)


def _line(cells: Sequence[str]) -> str:
    texts = (re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(texts)} |"


def best(sections: Sequence[Section]) -> str:
    """For the README: of every model's engines and quants the most telling figures; nothing without any."""
    engines = [s for s in sections if s.record["benchmark"] == "engines"]
    if not engines:
        return ""
    heads = ("", "engine", "quant", "new tokens/s", "peak memory", "perplexity", "KL, nats", "")
    body = []
    for section in engines:
        for row in (r for r in section.record["rows"] if r["state"] == "measured"):
            wanted = next(name for name in row["metrics"] if name.startswith("decode × ")), "peak memory"
            _, _, rate, *cells = _cells(row, [(name, row["metrics"][name]["unit"]) for name in wanted], judged=True)
            body.append((
                section.name, row["engine"], row["quant"], f"{NONE}{BUSY}" if row["busy"] else rate,
                cells[0], *cells[2:4], f"{WRONG} wrong" if row["wrong"] else "right",
            ))  # fmt: skip
    machines = dict.fromkeys(_machine(s.record) for s in engines)
    busy = any(row["busy"] for section in engines for row in section.record["rows"])
    said = f"On {'; '.join(machines)}." + (f" `{BUSY}`: others used the machine, so no speed is said." if busy else "")
    return "\n".join([*_table(heads, body), "", said]) + "\n"


def _machine(record: Mapping[str, Any]) -> str:
    machine = record["machine"]
    kind = f"{machine['kind']}, {machine['threads']} cores each" if isinstance(machine, Mapping) else str(machine)
    return f"{kind}, {record.get('when', '')[:10]}"

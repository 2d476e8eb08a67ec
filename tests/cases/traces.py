"""Traces held against the Trace Event Format, as far as we use it: fields, time, nesting, flows and counters."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

_PLACE: dict[str, Any] = {"pid": int, "tid": int, "ts": (int, float)}
_SPAN: dict[str, Any] = {"name": str, "cat": str, "args": dict, **_PLACE}
_FLOW: dict[str, Any] = {"name": str, "cat": str, "id": int, **_PLACE}
FIELDS: dict[str, dict[str, Any]] = {
    "X": {**_SPAN, "dur": (int, float)}, "i": {**_SPAN, "s": str}, "C": _SPAN,
    "M": {"name": str, "args": dict, **_PLACE},
    "s": _FLOW, "t": _FLOW, "f": {**_FLOW, "bp": str},
}  # fmt: skip

Event = dict[str, Any]


def checked(folder: Path) -> list[Event]:
    """The events of the trace in `folder`: every field is of its type, time goes on, spans of a thread nest, every flow
    is sent, arrives and returns in spans that there are, counters count bytes, and processes are named once."""
    found = json.loads((folder / "trace.json").read_text())
    assert {*found} == {"displayTimeUnit", "otherData", "traceEvents"}
    events: list[Event] = found["traceEvents"]
    for e in events:
        wanted = FIELDS[e["ph"]]
        assert {*e} == {"ph", *wanted}, e
        assert all(isinstance(e[k], t) for k, t in wanted.items()), e
        assert min(e["ts"], e.get("dur", 0)) >= 0, e
        assert e["name"].isprintable()
        assert e["ph"] != "C" or all(type(v) is int and v >= 0 for v in e["args"].values()), e
    times = [e["ts"] for e in events if e["ph"] != "M"]
    assert times == sorted(times)
    said = Counter((e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M")
    assert set(said.values()) <= {1}
    assert {e["pid"] for e in events} == {pid for name, pid, _ in said if name == "process_name"}
    assert len([n for n, *_ in said if n == "process_name"]) == len(found["otherData"]["processes"])
    for e, around in nested(events):
        assert around is None or end(e) <= end(around), e
    flows: dict[int, list[Event]] = defaultdict(list)
    threads: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for e in spans(events, "task", "run"):
        threads[_at(e)].append(e)
    for e in (e for e in events if e["ph"] in "stf"):
        assert any(s["ts"] <= e["ts"] and _ns(e["ts"]) <= end(s) for s in threads[_at(e)]), e
        flows[e["id"]].append(e)
    for steps in flows.values():
        assert [e["ph"] for e in steps] == ["s", "t", "f"]
        assert steps[0]["pid"] == steps[2]["pid"] != steps[1]["pid"]
    return events


def spans(events: list[Event], *kinds: str) -> list[Event]:
    return [e for e in events if e["ph"] == "X" and (not kinds or e["cat"] in kinds)]


def nested(events: list[Event], *kinds: str) -> list[tuple[Event, Event | None]]:
    """Every span, with the innermost that it begins in."""
    found: list[tuple[Event, Event | None]] = []
    threads: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for e in spans(events, *kinds):
        around = threads[_at(e)]
        while around and end(around[-1]) <= _ns(e["ts"]):
            around.pop()
        found.append((e, around[-1] if around else None))
        around.append(e)
    return found


def spent(events: list[Event]) -> dict[str, float]:
    """Stage → seconds in it and in none that it reads from, by where its spans lie."""
    found: Counter[str] = Counter()
    for e, around in nested(events, "stage"):
        found[e["name"]] += e["dur"] / 1e6
        found[around["name"] if around else ""] -= e["dur"] / 1e6
    del found[""]
    return dict(found)


def end(span: Event) -> int:
    """Nanoseconds."""
    return _ns(span["ts"]) + _ns(span["dur"])


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _at(event: Event) -> tuple[int, int]:
    return event["pid"], event["tid"]

"""What the processes of a run told (`pipeline.tracing`) as one file for Perfetto (ui.perfetto.dev) or chrome://tracing.

Trace Event Format, the JSON object form: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Of
its phases X (complete), i (instant), C (counter), s, t, f (flow) and M (metadata) are used; `ts` and `dur` are
microseconds. A flow leads from where a task was sent through its first span in another process to where its result
came.

Processes of one machine have one clock. Another machine's is laid beside it by both wall clocks, and then moved as far
as it takes for no task to begin before it was sent, or to end after its result was here: the two bounds that every task
of that machine gives, of which the narrowest count (as in Cristian's algorithm, over all round trips). Where no one
move is enough, its clock runs at another rate than ours, and a line in time is laid between all lower and upper bounds
(`pipeline.reporting.clocks`).
"""

import gc
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from pipeline import redact, terminal
from pipeline.errors import some
from pipeline.files import spoken
from pipeline.reporting import clocks
from pipeline.tracing import PARTS, PROFILES, encoded

NAME = "trace.json"
FORMAT = 1
DIGITS = 9  # of a fraction; of 20 and more Perfetto (v52) makes another number: 0.00041624100049375556 is 0.00536 there
HEAD = {"pid": int, "host": str, "role": str, "session": str, "clock": str, "perf_s": float, "wall_ns": int}


class Unwritten(Exception):
    """The trace cannot be written; says where, and why."""


@dataclass
class Part:
    """What one process told.

    Attributes:
        head: of its file.
        events: [task, phase, name, kind, start, seconds or value, args, thread]; seconds of its own clock.
        threads: native id → name.
        ended: number of each task that ended in it → key.
        sent, got: task → when it could begin, and when its result was there; in the process that the run began in.
        dropped: events that there was no room for.
        torn: lines that are none.
        offset_ns: what makes its clock that of the trace, at `since`.
        drift: nanoseconds more of it for every second of its clock after that.
        clock: how that was found.
    """

    path: Path
    head: dict[str, Any]
    events: list[list[Any]] = field(default_factory=list)
    threads: dict[int, str] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    sent: dict[str, float] = field(default_factory=dict)
    got: dict[str, float] = field(default_factory=dict)
    dropped: int = 0
    torn: int = 0
    offset_ns: int = 0
    drift: float = 0.0
    since: float = 0.0
    clock: str = ""

    def at(self, seconds: float) -> int:
        """Nanoseconds of the trace's clock, of its own."""
        moved = round(self.drift * (seconds - self.since)) if self.drift else 0
        return round(seconds * 1e9) + self.offset_ns + moved


def merge(folder: Path, about: Mapping[str, Any], done: Mapping[str, str]) -> list[str]:
    """Make the trace of the files of processes, of all tries that left some, and put it in place in one rename.

    Args:
        folder: of the run or the sweep.
        about: for the metadata; credentials are left out.
        done: tasks that were done, by key, with what to call them.

    Returns:
        What it lacks, a line each.

    Raises:
        Unwritten: it cannot be written, or the files not be read.
    """
    plain.cache_clear()  # secrets may have been learned since
    with _uncollected():
        return _merged(folder, about, done)


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for cycles in the body: half of the time of a trace went into it, and events are in none."""
    there = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if there:
            gc.enable()


def _merged(folder: Path, about: Mapping[str, Any], done: Mapping[str, str]) -> list[str]:
    path = folder / NAME
    lacking: list[str] = []
    parts: list[Part] = []
    try:
        for file in sorted((folder / PARTS).glob("*.jsonl")):
            part = _read(file)
            if part is None:
                lacking.append(f"{spoken(file)}: is no part of a trace, and is left out of it")
            else:
                parts.append(part)
        if not parts:
            return [*lacking, f"{spoken(path)}: nothing was told; there is no trace of this run"]
        parts.sort(key=lambda p: p.head["wall_ns"])
        _align(parts)
        lacking += _lacking(path, parts, done)
        metadata = {
            "format": FORMAT, "about": redact.tree(dict(about)),
            "processes": [{k: p.head[k] for k in ("pid", "host", "role")} | {"clock": p.clock} for p in parts],
            "dropped": sum(p.dropped for p in parts), "torn": sum(p.torn for p in parts),
            "profiles": [f"{PROFILES}/{f.name}" for f in profiles(folder)],
        }  # fmt: skip
        partial = path.with_name(f"{NAME}.partial")
        try:
            with partial.open("wb") as out:
                out.write(b'{"displayTimeUnit":"ms","otherData":')
                out.write(json.dumps(metadata).encode() + b',"traceEvents":[\n')
                first = True
                for event in _events(parts):
                    out.write((b"" if first else b",") + encoded(event))
                    first = False
                out.write(b"]}\n")
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
    except OSError as why:
        raise Unwritten(f"{spoken(path)}: cannot be written: {why.strerror}") from None
    return lacking


def profiles(folder: Path) -> list[Path]:
    """What jax.profiler wrote, a folder for each task that it watched; one of a killed process is empty, and none."""
    return sorted(p for p in (folder / PROFILES).glob("*") if next(p.glob("plugins/profile/*/*"), None) is not None)


def _read(path: Path) -> Part | None:
    """What a process told, up to a line that was torn; None: the file is nothing of the kind."""
    part: Part | None = None
    with path.open("rb") as file:
        for raw in file:
            try:
                said = _said(raw) if raw.endswith(b"\n") else None
                if part is None:
                    if not isinstance(said, dict) or any(not isinstance(said.get(k), t) for k, t in HEAD.items()):
                        return None
                    part = Part(path, said)
                else:
                    _take(part, said)
            except (ValueError, TypeError, KeyError, IndexError):
                if part is None:
                    return None
                part.torn += 1
    return part


def _said(line: bytes) -> Any:
    """Raises ValueError: it is no JSON."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:  # or of what `encoded` did not give to orjson
        return json.loads(line.decode())


def _take(part: Part, said: Any) -> None:
    """Raises ValueError, TypeError or IndexError for what no process says."""
    if said[0] == "thread":
        part.threads[int(said[1])] = str(said[2])
    elif said[0] == "dropped":
        part.dropped += int(said[1])
    elif said[0] in ("sent", "got"):
        (part.sent if said[0] == "sent" else part.got)[str(said[1])] = float(said[2])
    elif said[1] == "end":
        part.ended[int(said[0])] = str(said[2])
    else:
        number, phase, name, kind, start, value, args, thread = said
        if phase not in ("X", "i", "C") or not isinstance(args, dict) or not isinstance(thread, int | str):
            raise ValueError
        if not (abs(float(start)) < 1e12 and abs(float(value)) < 1e18):  # nor NaN
            raise ValueError
        part.events.append([int(number), phase, str(name), str(kind), float(start), float(value), args, thread])


def _align(parts: list[Part]) -> None:
    """Lay all clocks beside that of the process that began last."""
    mains = [p for p in parts if p.sent or p.head["role"] == "run"]
    base = (mains or parts)[-1]
    machines: dict[str, list[Part]] = defaultdict(list)
    for part in parts:
        machines[part.head["clock"]].append(part)
    for clock, there in machines.items():
        same = clock == base.head["clock"]
        of = (base if same else there[-1]).head
        for part in there:
            part.offset_ns = of["wall_ns"] - round(of["perf_s"] * 1e9)
            part.clock = "the run's own" if same else "by the wall clock"
    began = {m.head["session"]: m for m in mains}
    for clock, there in machines.items():
        if clock != base.head["clock"] and not any(part in mains for part in there):
            _move([(part, began[s]) for part in there if (s := part.head["session"]) in began])


def _move(there: Sequence[tuple[Part, Part]]) -> None:
    """Move the clock of a machine.

    Args:
        there: what its processes told, each with the process that sent it its tasks.
    """
    least, most = list[clocks.Bound](), list[clocks.Bound]()
    for part, main in there:
        for number, _, _, kind, start, seconds, *_ in part.events:
            if kind == "task" and (key := part.ended.get(number)) is not None:
                end = start + seconds
                least += [(start, main.at(main.sent[key]) - part.at(start))] if key in main.sent else []
                most += [(end, main.at(main.got[key]) - part.at(end))] if key in main.got else []
    if not least or not most:
        return
    found = clocks.between(least, most)
    for part, _ in there:
        part.offset_ns += found.moved_ns
        part.drift, part.since = found.drift, found.since
        part.clock = f"by the wall clock, {found.said}"


def _lacking(path: Path, parts: list[Part], done: Mapping[str, str]) -> list[str]:
    told = {key for p in parts for key in p.ended.values()}
    found = []
    if missing := [label for key, label in done.items() if key not in told]:
        where = "the folder could not be written from where they ran"
        found.append(
            f"{spoken(path)}: of {len(missing)} of {len(done)} tasks nothing was told ({some(missing)}): {where}"
        )
    if dropped := sum(p.dropped for p in parts):
        found.append(f"{spoken(path)}: {dropped:,} events are left out: a process tells no more than so many")
    return found


def _events(parts: list[Part]) -> Iterator[dict[str, Any]]:
    """Names of processes and threads, and then what they told, in time."""
    rows: list[tuple[int, int, dict[str, Any]]] = []
    threads: list[dict[int | str, int]] = [{} for _ in parts]
    again = _done_again(parts)
    for i, part in enumerate(parts, 1):
        head, tids, repeated = part.head, threads[i - 1], again[i - 1]
        for number, phase, name, kind, start, value, args, thread in part.events:
            tid = 0 if phase == "C" else tids.setdefault(thread, len(tids) + 1)
            at = part.at(start)
            event: dict[str, Any] = {"ph": phase, "name": plain(name) or "?", "cat": plain(kind), "pid": i, "tid": tid}
            if number and number not in part.ended:  # killed, and what it did is done again
                args = {**args, "unfinished": True}
            elif repeated and any(begin <= start <= end for begin, end in repeated.get((number, thread), ())):
                args = {**args, "done_again": True}
            nanoseconds = 0
            if phase == "C":
                event["args"] = {"bytes": int(value)}
            elif phase == "X":
                nanoseconds = part.at(start + value) - at
                event["dur"], event["args"] = nanoseconds, _plain(args)
            else:
                event["s"], event["args"] = "t", _plain(args)
            rows.append((at, -nanoseconds, event))
        title = f"{head['role']}, process {head['pid']} on {head['host']}"
        yield _meta("process_name", i, 0, {"name": plain(title)})
        yield _meta("process_sort_index", i, 0, {"sort_index": i})
        for thread, tid in tids.items():
            said = part.threads.get(thread, str(thread)) if isinstance(thread, int) else thread
            yield _meta("thread_name", i, tid, {"name": plain(said)})
    rows += _flows(parts, threads)
    rows.sort(key=lambda r: r[:2])
    zero = rows[0][0] if rows else 0
    for at, _, event in rows:
        event["ts"] = (at - zero) / 1000
        if "dur" in event:
            event["dur"] /= 1000
        yield event


def _done_again(parts: Sequence[Part]) -> list[dict[tuple[int, int | str], list[tuple[float, float]]]]:
    """Of each part the chunks that ended there, and that a later try did once more, because the one that did them was
    killed before that was noted: task and thread → from when to when.

    Args:
        parts: in the order in which they began.
    """
    tries = {session: n for n, session in enumerate(dict.fromkeys(part.head["session"] for part in parts))}
    done: dict[tuple[str, str, str], list[tuple[int, int, list[Any]]]] = defaultdict(list)
    for i, part in enumerate(parts):
        for event in part.events:
            number, phase, name, kind, *_, args, _ = event
            if phase == "X" and kind == "chunk" and number in part.ended and "failed" not in args:
                of = part.ended[number], name, str(args.get("jobs"))
                done[of].append((tries[part.head["session"]], i, event))
    found: list[dict[tuple[int, int | str], list[tuple[float, float]]]] = [defaultdict(list) for _ in parts]
    for attempts in done.values():
        last = max(n for n, *_ in attempts)
        for n, i, (number, _, _, _, start, seconds, _, thread) in attempts:
            if n < last:
                found[i][number, thread].append((start, start + seconds))
    return found


def _flows(
    parts: Sequence[Part], threads: Sequence[Mapping[int | str, int]]
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """What was sent to other processes and came back, in the order in which it was sent.

    Args:
        threads: of each part, what its threads are called in the trace.
    """
    first: dict[tuple[str, str], tuple[int, int, int]] = {}  # of a session's task where it began
    for i, part in enumerate(parts):
        for number, _, _, kind, start, _, _, thread in part.events:
            if kind == "task" and (key := part.ended.get(number)) is not None:
                begun = (part.at(start), i, threads[i][thread])
                first[part.head["session"], key] = min(begun, first.get((part.head["session"], key), begun))
    flow = 0
    for i, part in enumerate(parts):
        run = next((e for e in part.events if e[3] == "run"), None)
        for key, sent in part.sent.items() if run is not None else ():
            found = first.get((part.head["session"], key))
            if found is None or found[1] == i or key not in part.got:
                continue
            there, process, thread = found
            if not part.at(sent) <= there <= part.at(part.got[key]):  # of a clock that runs unevenly
                continue
            flow += 1
            here = (i + 1, threads[i][run[7]])  # type: ignore[index]  # there is one
            for phase, at, (pid, tid) in (
                ("s", part.at(sent), here), ("t", there, (process + 1, thread)), ("f", part.at(part.got[key]), here),
            ):  # fmt: skip
                event = {"ph": phase, "name": "task", "cat": "sent", "id": flow, "pid": pid, "tid": tid}
                yield at, 0, event | ({"bp": "e"} if phase == "f" else {})


def _meta(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}


@lru_cache(4096)
def plain(text: str) -> str:
    """`text` in one line, with nothing that steers a terminal, and no secrets; most are said again and again."""
    return terminal.line(text)


def _plain(value: Any) -> Any:
    """Without what would steer a terminal, and without secrets; seconds to the nanosecond."""
    kind = type(value)  # as JSON is read
    if kind is int:
        return value
    if kind is float:
        return round(value, DIGITS)
    if kind is str:
        return plain(value)
    if kind is list:
        return [_plain(v) for v in value]
    if kind is not dict:
        return value
    # Most of what spans say are numbers, and no call for each of these is half of the time.
    return {
        plain(k): v if type(v) is int else round(v, DIGITS) if type(v) is float else _plain(v) for k, v in value.items()
    }

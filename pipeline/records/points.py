"""Metrics as they come: append-only files of JSON lines, one for each process of a run, and who reads them meanwhile.

`metrics.jsonl` is the first process's, which most runs have alone; `metrics.NAME.jsonl` is another's. A line is an
object with a `kind`:

- `metric`: what a name stands for from here on: `of` (a kind), `name`, `unit`, `better` (`lower`, `higher`, or empty);
- `point`, `figure`: one value: `name`, `value`, and where there are any `unit`, `better`, `step`, `time`, `stage`;
- `stage`, `error`, `tensor`, `run`: what the manifest has too, at the end of a run; the last one of a name counts;
- any other (`train`, `held_out`, …): as many values as it has numbers, under their names, all of one `step` and `time`.

Numbers that are not finite are text (`nan`, `inf`, `-inf`), as JSON has none. A line is data once its line break is
there: what a killed process left of one is closed by the next line that is written, and is then a line like no other,
which readers name, as they do what others wrote there, and leave out.
"""

import errno
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from pipeline.errors import SourceError, StorageError
from pipeline.figures import Better
from pipeline.files import opened, spoken, unwritten

if TYPE_CHECKING:
    from pipeline.records.blocks import Block

METRICS = "metrics.jsonl"
PATTERN = "metrics*.jsonl"  # of all processes
METRIC, POINT, FIGURE = "metric", "point", "figure"
RECORDED = ("stage", "error", "tensor", FIGURE, "run")  # written once at the end, from the manifest
AXES = {"kind", "step", "time", "stage", "member", "seed", "peak_rate"}  # of a row: where its values stand
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
BLOCK_NBYTES = 1 << 21
MOST_LINE_NBYTES = 1 << 24  # longer ones are no rows of metrics: what has no line break is not held in memory
ANCHOR_NBYTES = 4096
MOST_PROBLEMS = 100  # that are kept of one file; more are counted


@dataclass(frozen=True, slots=True)
class Type:
    """What a metric is measured in, and which of two values is better (empty: neither)."""

    unit: str = ""
    better: Better = ""


class Point(NamedTuple):
    """A value of a metric.

    Attributes:
        kind: of the row that it stood in: `train`, `held_out`, `point`, …
        member: which of several models that were trained at once; None: there is one.
        time: seconds since the epoch; None: not known, as of runs of earlier versions.
        process: whose file it is; empty: the first one's.
    """

    kind: str
    name: str
    value: float
    unit: str = ""
    better: Better = ""
    step: int | None = None
    time: float | None = None
    stage: str = ""
    member: int | None = None
    process: str = ""

    @property
    def series(self) -> str:
        """What it is a value of, for people: `train loss`, `rss`."""
        return series_of(self.kind, self.name, self.member)


def series_of(kind: str, name: str, member: int | None = None) -> str:
    """The name of all values of a metric together."""
    whole = name if kind in (POINT, FIGURE) else f"{kind} {name}"
    return whole if member is None else f"{whole}, member {member}"


@dataclass(slots=True)
class Position:
    """How far a file has been read; plain data as `asdict` gives it, to go on from there later.

    Attributes:
        offset: bytes.
        lines: before it.
        anchor: digest of the last bytes before it: another file, or one that was cut and has grown again, has others.
        types: what was said of names before it: kind → name → unit, better.
        problems: lines that are no rows, named; `damaged` counts them all.
    """

    offset: int = 0
    lines: int = 0
    anchor: str = ""
    types: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    damaged: int = 0

    def type_of(self, kind: str, name: str) -> Type:
        unit, better = self.types.get(kind, {}).get(name, ("", ""))
        return Type(unit, better)  # type: ignore[arg-type]  # checked where it was read

    def declare(self, row: Mapping[str, Any]) -> None:
        """Take what a row of kind `metric` says."""
        self.types.setdefault(row["of"], {})[row["name"]] = [row["unit"], row["better"]]

    def holds(self, path: Path) -> bool:
        """Whether the file still begins with what was read.

        Raises:
            SourceError: it cannot be read.
        """
        with opened(path) as fd:
            return os.fstat(fd).st_size >= self.offset and (not self.offset or _anchor(fd, self.offset) == self.anchor)

    def mark(self, path: Path, line: int, why: str) -> None:
        """Name a line that is left out."""
        self.damaged += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(f"{spoken(path)}:{line}: {why}")


def files(folder: Path) -> list[Path]:
    """The files of metrics in a run's folder, the first process's first."""
    return sorted(folder.glob(PATTERN), key=lambda p: (p.name != METRICS, len(p.name), p.name))


def file_of(folder: Path, process: str | int = "") -> Path:
    """Where a process writes: the first one (0, or no name) to `metrics.jsonl`."""
    return folder / (f"metrics.{process}.jsonl" if process not in ("", 0, "0") else METRICS)


def process_of(path: Path) -> str:
    """Whose file it is; empty: the first process's."""
    return path.name.removeprefix("metrics").removesuffix(".jsonl").removeprefix(".")


def number(value: Any) -> float | None:
    """A value as a line has it; None: it is none."""
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return None
    return NOT_FINITE.get(value) if isinstance(value, str) else None


def blocks(path: Path, at: Position | None = None) -> Iterator["Block"]:
    """The rows of a file from `at` on, thousands at once; `at` moves along. What is not ours is named in `at.problems`
    and left out, and a last line without its end is left for later. Exhaust it before `at` is kept.

    Raises:
        SourceError: the file cannot be read.
    """
    from pipeline.records.blocks import block  # a run writes rows, and reads none

    at = Position() if at is None else at
    with opened(path) as fd:
        left = b""
        while more := _read(path, fd, at.offset + len(left)):
            whole, end, left = (left + more).rpartition(b"\n")
            if not end:
                if len(left) > MOST_LINE_NBYTES:
                    raise SourceError(
                        f"{spoken(path)}:{at.lines + 1}: more than {MOST_LINE_NBYTES:,} bytes without a line break: "
                        "is no file of metrics"
                    )
                continue
            at.offset += len(whole) + 1
            lines = whole.split(b"\n")
            found = block(lines, at.lines + 1)
            at.lines += len(lines)
            for line, why in found.faults:
                at.mark(path, line, why)
            yield found
            for row in found.of(METRIC):
                at.declare(row)
        at.anchor = _anchor(fd, at.offset)


def rows(path: Path, at: Position | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a file, one after another; see `blocks`.

    Raises:
        SourceError: the file cannot be read.
    """
    at = Position() if at is None else at
    for found in blocks(path, at):
        for row in found.rows:
            if row["kind"] == METRIC:
                at.declare(row)
            yield row


def points(path: Path, at: Position | None = None) -> Iterator[Point]:
    """The values of a file, in the order in which they were written; see `blocks`.

    Raises:
        SourceError: the file cannot be read.
    """
    at, process = Position() if at is None else at, process_of(path)
    for row in rows(path, at):
        kind, stage, step, member = row["kind"], row.get("stage", ""), row.get("step"), row.get("member")
        when = row.get("time")
        for name, value in values_of(row):
            said = Type(row.get("unit", ""), row.get("better", "")) if "unit" in row else at.type_of(kind, name)
            yield Point(kind, name, value, said.unit, said.better, step, when, stage, member, process)


def values_of(row: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Names and values of a row."""
    kind = row["kind"]
    if kind in (POINT, FIGURE):
        value = number(row["value"])
        return [] if value is None else [(row["name"], value)]
    if kind == METRIC or kind in RECORDED:
        return []
    return [(n, v) for n, given in row.items() if n not in AXES and (v := number(given)) is not None]


class Writer:
    """One process's file, which only grows: every line is written at once, and is a row that the schema has.

    A process that is killed loses the line that it is writing, at most.
    """

    def __init__(self, path: Path, types: Mapping[str, Mapping[str, Type]] | None = None):
        """
        Args:
            types: kind → name → what is said of it before its first value.

        Raises:
            StorageError: it cannot be opened.
        """
        self.path, self._types = path, types or {}
        self._said: set[tuple[str, str]] = set()
        try:
            self._file = path.open("ab", buffering=0)
            size = os.fstat(self._file.fileno()).st_size
            with path.open("rb") as before:
                before.seek(max(0, size - 1))
                self._torn = bool(size) and before.read(1) != b"\n"
        except OSError as why:
            raise StorageError(f"{spoken(path)}: {why.strerror}") from None

    def row(self, kind: str, values: Mapping[str, Any]) -> None:
        """Add one, and before it what its names stand for.

        Raises:
            StorageError: it cannot be written, or is no row.
        """
        self.lines([*self.declared(kind, values), {"kind": kind, **values}])

    def point(self, name: str, value: float, *, unit: str = "", better: Better = "", **where: Any) -> None:
        """Add one value.

        Args:
            where: `step`, `time`, `stage`, `member`.

        Raises:
            StorageError: it cannot be written, or is no value.
        """
        self.lines([{"kind": POINT, "name": name, "value": plain(value), "unit": unit, "better": better, **where}])

    def declared(self, kind: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What is still to be said of the names of a row."""
        of = self._types.get(kind)
        new = [name for name in values if of and name in of and (kind, name) not in self._said]
        self._said |= {(kind, name) for name in new}
        return [{"kind": METRIC, "of": kind, "name": name, **asdict(of[name])} for name in new] if of else []

    def said(self, kind: str, name: str) -> None:
        """An earlier process has declared it in this file."""
        self._said.add((kind, name))

    def lines(self, given: Sequence[Mapping[str, Any]]) -> int:
        """Add rows at once; returns how many bytes that are.

        Raises:
            StorageError: they cannot be written, or are no rows.
        """
        from pipeline.records import schemas

        for row in given:
            schemas.check_line(row, self.path)
        data = b"".join(json.dumps(row, ensure_ascii=False).encode(errors="backslashreplace") + b"\n" for row in given)
        nbytes = len(data)
        data = b"\n" + data if self._torn else data
        try:
            written = self._file.write(data)
            self._torn = written != len(data)  # what comes later, does so on a line of its own
            if self._torn:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as why:
            raise unwritten(self.path, why, len(data)) from None
        return nbytes

    def close(self) -> None:
        self._file.close()


def plain(value: float) -> float | str:
    """A number as JSON holds it."""
    return value if math.isfinite(value) else str(float(value))


def _read(path: Path, fd: int, offset: int) -> bytes:
    try:
        return os.pread(fd, BLOCK_NBYTES, offset)
    except OSError as why:
        raise SourceError(f"{spoken(path)}: cannot be read: {why.strerror}") from None


def _anchor(fd: int, offset: int) -> str:
    begin = max(0, offset - ANCHOR_NBYTES)
    return xxhash.xxh3_64_hexdigest(os.pread(fd, offset - begin, begin))

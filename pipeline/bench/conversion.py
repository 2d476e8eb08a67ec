"""What a benchmark of conversion is made of: commands that write files, timed until these are on the disk."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from pipeline.bench import tables as common
from pipeline.bench.converted import Right
from pipeline.bench.rows import BUSY, Metric
from pipeline.errors import StageError, short
from pipeline.figures import Cell, Figure
from pipeline.stage import Table
from pipeline.units import show_bytes

CP = "cp"
SAID = 400  # characters of what a command said that failed
BYTECODE = "bytecode"
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


class Converter(Protocol):
    """A program of somebody else that converts files."""

    @property
    def needs(self) -> Mapping[str, str]:
        """Modules, and what to type where they are not installed."""

    def why_not(self, source: Path, quant: str, config: Mapping[str, Any]) -> str:
        """Why it cannot do this, in words; empty: it can."""

    def command(self, source: Path, place: Path, quant: str) -> Sequence[str]:
        """What converts `source` into the folder `place`, which is there and empty."""


@dataclass(frozen=True)
class Copy:
    """See `Converter`: `cp`, which everything else is held to."""

    @property
    def needs(self) -> Mapping[str, str]:
        return {}

    def why_not(self, source: Path, quant: str, config: Mapping[str, Any]) -> str:
        return ""

    def command(self, source: Path, place: Path, quant: str) -> Sequence[str]:
        return ["cp", "-rL", str(source), str(place)]


@dataclass(frozen=True)
class Conversion:
    """A process: a command, from nothing to files that are on the disk.

    Attributes:
        room: an own folder of it, which is empty before and gone afterwards; the files come to `place` in it.
        nbytes: of the source.
        right: what is written is held to it, when the time is taken.
    """

    command: tuple[str, ...]
    room: Path
    place: Path
    nbytes: int
    right: Right

    def __call__(self) -> Mapping[str, Any]:
        """
        Raises:
            StageError: the command failed, or wrote nothing.
        """
        from pipeline.testing.peak import watch

        shutil.rmtree(self.room, ignore_errors=True)
        self.place.mkdir(parents=True)
        # Python keeps what it compiles, as for whoever asks for nothing else.
        kept = {key: value for key, value in os.environ.items() if key != NO_BYTECODE}
        try:
            os.sync()  # of those before it
            seen = watch(self.command, env=kept | {"PYTHONPYCACHEPREFIX": str(self.room.parent / BYTECODE)})
            if seen.returncode:
                raise StageError(f"exit {seen.returncode}: {short(' / '.join(seen.output.splitlines()[-5:]), SAID)}")
            synced, written = _synced(self.place)
            if not written:
                raise StageError("it ended well and wrote nothing")
            wrong = self.right.wrong(self.place)
        finally:
            shutil.rmtree(self.room, ignore_errors=True)
        return {
            "s": seen.seconds + synced, "peak": seen.tree_nbytes, "written": written, "read": self.nbytes,
            "wrong": wrong,
        }  # fmt: skip


def _synced(place: Path) -> tuple[float, int]:
    """Seconds until all files below are on the disk, and their bytes."""
    import time

    start, nbytes = time.perf_counter(), 0
    for file in place.rglob("*"):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
            nbytes += file.stat().st_size
    return time.perf_counter() - start, nbytes


def said(found: Mapping[str, Any]) -> str:
    """What a round found, in a line."""
    wrong = f"; wrong: {found['wrong']}" if found["wrong"] else ""
    return f"{found['s']:.2f} s, {found['read'] / found['s'] / 1e6:.0f} MB/s, {show_bytes(found['peak'])}{wrong}"


def row(name: str, quant: str, rounds: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]], others: float
) -> dict[str, Any]:  # fmt: skip
    """As bench.json has it. What is wrong has no figures: it is not quick, whatever it took.

    Args:
        rounds: what `Conversion` found.
        base: what it found of `cp` in the same rounds.
    """
    time = Metric.of([r["s"] for r in rounds], "s", "lower")
    memory = Metric.of([r["peak"] for r in rounds], "B", "lower")
    wrong = next((r["wrong"] for r in rounds if r["wrong"]), "")
    return {
        "engine": name, "quant": quant, "state": "measured", "why": "", "wrong": wrong, "others": others,
        "busy": others > BUSY, "metrics": {} if wrong else {"time": asdict(time), "peak memory": asdict(memory)},
        "rate": rounds[0]["read"] / time.value, "written": rounds[-1]["written"], "read": rounds[-1]["read"],
        "of_cp": median(r["s"] / cp["s"] for r, cp in zip(rounds, base, strict=True)),
    }  # fmt: skip


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """Bytes of the source a second."""
    return {r["engine"]: Figure(r["rate"] / 1e6, "MB/s", ".0f", "higher") for r in rows if r["metrics"]}


def tables(rows: Sequence[Mapping[str, Any]], worse: Sequence[str], against: str | None) -> tuple[Table, ...]:
    """What was measured, what was not, and what got worse."""
    measured = [r for r in rows if r["state"] == "measured"]
    columns = ("", "seconds", "MB/s of input", "× cp", "peak memory", "written", "verdict", "others, cores")
    shown = Table(common.titled("Conversion", measured), columns, tuple(tuple(_cells(r)) for r in measured))
    return (shown, *common.rest(rows, ("by", "quant"), worse, against))


def _cells(found: Mapping[str, Any]) -> Iterator[Cell]:
    yield f"✗ {found['engine']}" if found["wrong"] else found["engine"]
    if found["wrong"]:
        yield from ("–",) * 5
        yield f"✗ wrong: {found['wrong']}"
        yield f"{found['others']:.1f}{common.BUSY if found['busy'] else ''}"
        return
    time = found["metrics"]["time"]
    yield f"{time['value']:.2f}{common.apart(time)}"
    yield f"{found['rate'] / 1e6:.0f}"
    yield f"{found['of_cp']:.2f}"
    peak = found["metrics"]["peak memory"]["value"]
    yield show_bytes(peak) if peak else "–"  # over before it was looked at
    yield show_bytes(found["written"])
    yield "right"
    yield f"{found['others']:.1f}{common.BUSY if found['busy'] else ''}"

"""What people see of a training, and what stays of it: a line that says how far it is, rows of metrics, a picture.

`metrics.jsonl` grows while the training runs, a JSON object a line. What kind a row is, `kind` says: `train` (of one
update), `held_out` (an evaluation), `sample` (a text); see `pipeline.records.points`.
"""

import math
import os
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pipeline.errors import StorageError
from pipeline.figures import Better
from pipeline.records import points
from pipeline.records.points import Position, Type
from pipeline.reporting.plots import Points, curves
from pipeline.running import text_stream
from pipeline.units import show_seconds

SMOOTH = 0.9  # of the loss that the line and the picture show, what stays with each update
RECENT = 0.9  # the same of the seconds of an update

# Dense products in bf16, FLOP/s of one device, by what JAX calls it (makers' data sheets).
PEAKS = {
    "NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12, "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12, "TPU v4": 275e12, "TPU v5 lite": 197e12, "TPU v5p": 459e12, "TPU v6 lite": 918e12,
}  # fmt: skip


LOWER = {"loss", "divergence", "absolute error", "absolute_error", "perplexity"}
HIGHER = {"accuracy", "agreement", "R²"}


def better(name: str) -> Better:
    """Which of two values of what an objective shows is better; empty: neither."""
    return "lower" if name in LOWER else "higher" if name in HIGHER else ""


def types(unit: str) -> dict[str, dict[str, Type]]:
    """What the numbers in rows stand for, by kind of row.

    Args:
        unit: of what an update goes through.
    """
    found = {name: Type("", better(name)) for name in (*LOWER, *HIGHER)}
    speed = {f"{unit}_per_s": Type(f"{unit}/s", "higher"), "mfu": Type("", "higher")}
    return {"train": found | speed | {"seconds": Type("s", "lower"), unit: Type(unit)}, "held_out": found}


class Metrics:
    """Rows, in every one of `files`: what the first has, up to where a state was saved, is what is gone on from.

    Files only grow while a training runs. Whoever goes on from a saved state first cuts what came after it, and a line
    that was torn: those updates are made again, to the same bits, and each is to be there once. Readers that had seen
    more notice (`pipeline.records.points.Position.holds`), as rows have the time at which they were written.
    """

    def __init__(self, files: Sequence[Path], nbytes: int = 0, types: Mapping[str, Mapping[str, Type]] | None = None):
        """
        Args:
            nbytes: of the first that stay.
            types: see `types`.

        Raises:
            StorageError: the first is not as long, or not of ours; one cannot be written.
        """
        self.rows: list[dict[str, Any]] = []
        self.nbytes = nbytes
        kept = files[0].read_bytes()[:nbytes] if files and nbytes and files[0].exists() else b""
        if len(kept) < nbytes:
            raise StorageError(f"{files[0]}: has {len(kept):,} bytes, where the saved state has seen {nbytes:,}")
        try:
            for i, file in enumerate(files):
                if i == 0 and kept:  # cut, and not written anew: a process may be killed in between
                    os.truncate(file, nbytes)
                else:
                    file.write_bytes(kept)
        except OSError as why:
            raise StorageError(f"{why.filename}: {why.strerror}") from None
        at = Position()
        if kept:
            self.rows += [row for row in points.rows(files[0], at) if row["kind"] != points.METRIC]
            if at.problems:
                raise StorageError(f"{at.problems[0]}; the saved state has seen whole ones")
        self._writers = [points.Writer(file, types) for file in files]
        for writer in self._writers:
            for kind, names in at.types.items():
                for name in names:
                    writer.said(kind, name)

    def row(self, kind: str, **values: Any) -> None:
        """Add one."""
        said = {"kind": kind, "time": time.time(), **{name: _plain(value) for name, value in values.items()}}
        self.rows.append(said)
        for i, writer in enumerate(self._writers):
            nbytes = writer.lines([*writer.declared(kind, said), said])
            self.nbytes += nbytes if i == 0 else 0

    def close(self) -> None:
        for writer in self._writers:
            writer.close()

    def picture(self, path: Path) -> None:
        """The losses over updates, as a PNG."""
        seen = [(r["step"], r["loss"]) for r in self.rows if r["kind"] == "train" and isinstance(r["loss"], float)]
        held = [(r["step"], r["loss"]) for r in self.rows if r["kind"] == "held_out" and isinstance(r["loss"], float)]
        if not seen:
            return
        given: dict[str, Points] = {"each update": ([step for step, _ in seen], [loss for _, loss in seen])}
        if len(seen) > 20:
            given["smoothed"] = ([step for step, _ in seen], smoothed([loss for _, loss in seen]))
        if held:
            given["held out"] = ([step for step, _ in held], [loss for _, loss in held])
        curves(path, "Loss", "update", "loss", given)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(v) for name, v in value.items()}
    if isinstance(value, str | int | None):
        return value
    number = float(value)
    return number if math.isfinite(number) else str(number)


def smoothed(values: Sequence[float]) -> list[float]:
    """The running average of each and those before it, in which older ones count less."""
    found, so_far, of = [], 0.0, 0.0
    for value in values:
        so_far, of = SMOOTH * so_far + value, SMOOTH * of + 1
        found.append(so_far / of)
    return found


class Line:
    """The line that says how far a training is: update, loss, rate, speed, what share of the device's that is, and how
    long it will still take."""

    def __init__(self, name: str, steps: int, unit: str, flops: float, peak: float | None):
        """
        Args:
            unit: of what an update goes through: tokens, or examples.
            flops: of one of these, forth and back.
            peak: FLOP/s of all devices; None: not known.
        """
        self.name, self.steps, self.unit, self.flops, self.peak = name, steps, unit, flops, peak
        self._loss = self._of = 0.0
        self._seconds: float | None = None
        self._compiled = False
        self._last = time.perf_counter()

    def begin(self) -> None:
        """What comes next begins now: compiling and evaluating count for no update."""
        self._last = time.perf_counter()

    def update(self, step: int, figures: Mapping[str, float], amount: int) -> dict[str, float]:
        """Show the update `step`, which went through `amount` of the unit; returns seconds, speed and share. Of the
        first, which is compiled meanwhile, seconds alone."""
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        self._loss, self._of = SMOOTH * self._loss + figures["loss"], SMOOTH * self._of + 1
        said = [f"{self.name} {step}/{self.steps}", f"loss {self._loss / self._of:.3f}", f"rate {figures['rate']:.2g}"]
        if not self._compiled:
            self._compiled = True
            text_stream.live(" · ".join([*said, f"compiled and computed in {show_seconds(seconds)}"]))
            return {"seconds": seconds}
        self._seconds = seconds if self._seconds is None else RECENT * self._seconds + (1 - RECENT) * seconds
        speed = amount / seconds
        found = {"seconds": seconds, f"{self.unit}_per_s": speed}
        said.append(f"{amount / self._seconds:,.0f} {self.unit}/s")
        if self.peak is not None:
            found["mfu"] = speed * self.flops / self.peak
            said.append(f"MFU {100 * amount / self._seconds * self.flops / self.peak:.0f} %")
        said.append(f"{show_seconds((self.steps - step) * self._seconds)} left")
        text_stream.live(" · ".join(said))
        return found


def norms_of(groups: Sequence[str], norms: Mapping[str, float], of: str) -> dict[str, float]:
    """For each pattern of names `OF_norm PATTERN`, the norm of all of these together.

    Args:
        of: what the norms are of: `gradient`, or `update`.
    """
    found = {}
    for pattern in groups:
        some = [norm for name, norm in norms.items() if fnmatchcase(name, pattern)]
        found[f"{of}_norm {pattern}"] = math.sqrt(sum(norm * norm for norm in some))
    return found

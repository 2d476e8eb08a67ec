"""What one task measured: time and bytes by stage, quantization error by tensor and what steps of calibration gained,
which kernel backends ran and which declined, what it wrote and had on the device.

A meter is current only while a task runs (a context variable, so threads do not mix); its record is plain data that
travels back over a Dask edge.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline import tracing
from pipeline.tensors.stats import ErrorStats, Gain


@dataclass(slots=True)
class Tally:
    """Work of one stage: seconds spent in it alone (not in the stages it reads from), bytes taken and given."""

    seconds: float = 0.0
    nbytes_in: int = 0
    nbytes_out: int = 0


Declined = tuple[str, str, str, str]
"""Op, backend, why it could not, and the backend that did it instead."""

MOST_REASONS = 32  # different ones that are kept apart; a reason that quotes values could be another for every chunk
OTHER_REASONS = "other reasons"


def count_declined(into: Counter[Declined], what: Declined, count: int) -> None:
    """Add to `into`, which stays short."""
    if what not in into and len(into) >= MOST_REASONS:
        what = (what[0], what[1], OTHER_REASONS, what[3])
    into[what] += count


@dataclass(slots=True)
class Meter:
    stages: dict[str, Tally] = field(default_factory=dict)
    errors: dict[str, ErrorStats] = field(default_factory=dict)
    gains: dict[str, Gain] = field(default_factory=dict)
    remarks: dict[str, set[str]] = field(default_factory=dict)
    nonfinite: Counter[str] = field(default_factory=Counter)
    backends: set[tuple[str, str]] = field(default_factory=set)
    declined: Counter[Declined] = field(default_factory=Counter)
    written: int = 0
    disk_nbytes: int = 0
    processes_nbytes: int = 0
    device_nbytes: int = 0
    took: bool = False
    repeated: tuple[float, float] = (0.0, 0.0)
    # One entry for every stage now running: [seconds spent in nested stages, bytes they gave].
    _nested: list[list[float]] = field(default_factory=list)

    def share(self, part: float) -> "Meter":
        """What a part of the work measured, where only bytes were."""
        of = {n: Tally(0.0, round(t.nbytes_in * part), round(t.nbytes_out * part)) for n, t in self.stages.items()}
        return Meter(of, backends=self.backends)

    def record(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "stages": {name: asdict(t) for name, t in self.stages.items()},
            "errors": {name: e.to_json() for name, e in self.errors.items()},
            "gains": {name: g.to_json() for name, g in self.gains.items()},
            "nonfinite": dict(self.nonfinite),
            "remarks": {name: sorted(said) for name, said in self.remarks.items()},
            "backends": sorted(list(b) for b in self.backends),
            "declined": [[*what, n] for what, n in sorted(self.declined.items())],
            "written": self.written + self.disk_nbytes,
            "processes_nbytes": self.processes_nbytes,
            "device_nbytes": self.device_nbytes,
            "took": self.took,
            "repeated": list(self.repeated),
        }


_current: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def metered() -> Iterator[Meter]:
    """Make a fresh meter current for the body."""
    meter = Meter()
    token = _current.set(meter)
    try:
        yield meter
    finally:
        _current.reset(token)


class stage:
    """Time the body of a `with` as stage `name`; element 0 of the list that it gets is to become the bytes that the
    stage gave. (A generator would take as long as opening a file.)
    """

    __slots__ = ("gave", "meter", "name", "start")

    def __init__(self, name: str):
        self.name, self.gave = name, [0]

    def __enter__(self) -> list[int]:
        self.meter = _current.get()
        if self.meter is not None:
            self.meter._nested.append([0.0, 0.0])
        self.start = time.perf_counter()
        return self.gave

    def __exit__(self, *_: object) -> None:
        if (meter := self.meter) is None:
            return
        spent = time.perf_counter() - self.start
        nested_s, taken = meter._nested.pop()
        tally = meter.stages.get(self.name)
        if tally is None:
            tally = meter.stages[self.name] = Tally()
        tally.seconds += spent - nested_s
        tally.nbytes_in += int(taken)
        tally.nbytes_out += self.gave[0]
        if tracing.active:
            how = {"self_s": spent - nested_s, "nbytes_in": int(taken), "nbytes_out": self.gave[0]}
            tracing.done(self.name, "stage", self.start, spent, **how)
        if meter._nested:
            meter._nested[-1][0] += spent
            meter._nested[-1][1] += self.gave[0]


def add(other: Meter, gave: int, seconds: float | None = None) -> None:
    """Add what reading measured under a meter of its own, as if it had been read under the current one.

    Args:
        other: what it measured.
        gave: bytes that were read.
        seconds: how long it took; None: it was read before, for somebody else, so that it takes no time again.
    """
    meter = _current.get()
    if meter is None:
        return
    for name, tally in other.stages.items():
        mine = meter.stages.setdefault(name, Tally())
        mine.seconds += tally.seconds if seconds is not None else 0.0
        mine.nbytes_in += tally.nbytes_in
        mine.nbytes_out += tally.nbytes_out
    for name, stats in other.errors.items():
        meter.errors[name] = meter.errors.get(name, ErrorStats()) + stats
    for name, gain in other.gains.items():
        meter.gains[name] = meter.gains.get(name, Gain()) + gain
    for name, said in other.remarks.items():
        meter.remarks.setdefault(name, set()).update(said)
    meter.nonfinite += other.nonfinite
    meter.backends |= other.backends
    for what, times in other.declined.items():
        count_declined(meter.declined, what, times)
    if meter._nested:
        meter._nested[-1][0] += seconds or 0.0
        meter._nested[-1][1] += gave


def remark(tensor: str, what: str) -> None:
    """Note something of a slice of `tensor`, for whoever gathers the records."""
    if (meter := _current.get()) is not None:
        meter.remarks.setdefault(tensor, set()).add(what)


def nonfinite(tensor: str, count: int) -> None:
    """Add how many values or scales of a slice of `tensor` are NaN or infinite, and were written so."""
    if count and (meter := _current.get()) is not None:
        meter.nonfinite[tensor] += count


def error(tensor: str, stats: ErrorStats) -> None:
    """Add what quantizing a slice of `tensor` lost."""
    meter = _current.get()
    if meter is not None:
        meter.errors[tensor] = meter.errors.get(tensor, ErrorStats()) + stats


def gained(tensor: str, gain: Gain) -> None:
    """Add what the steps of quantizing a slice of `tensor` lose of outputs."""
    meter = _current.get()
    if meter is not None:
        meter.gains[tensor] = meter.gains.get(tensor, Gain()) + gain


def ran(op: str, backend: str) -> None:
    """Note that `backend` did `op`."""
    meter = _current.get()
    if meter is not None:
        meter.backends.add((op, backend))


def declined(op: str, backend: str, reason: str, instead: str) -> None:
    """Note that `backend` could not do `op`, and `instead` did."""
    meter = _current.get()
    if meter is not None:
        count_declined(meter.declined, (op, backend, reason, instead), 1)


def wrote(nbytes: int) -> None:
    """Add what a stage has written beside the files of its work."""
    meter = _current.get()
    if meter is not None:
        meter.written += nbytes


def on_disk(nbytes: int) -> None:
    """Note that what a stage has written takes so much of the disk now; it need not stay."""
    meter = _current.get()
    if meter is not None:
        meter.disk_nbytes = max(meter.disk_nbytes, nbytes)


def in_processes(nbytes: int) -> None:
    """Note that processes which a stage started for something of its own had so much memory at once."""
    meter = _current.get()
    if meter is not None:
        meter.processes_nbytes = max(meter.processes_nbytes, nbytes)


def on_device(nbytes: int) -> None:
    """Note that so much is on the device now: weights, and the KV cache."""
    meter = _current.get()
    if meter is not None:
        meter.device_nbytes = max(meter.device_nbytes, nbytes)
    if tracing.active:
        tracing.counter("device", nbytes)


def took() -> None:
    """Note that a stage took some of what it gives from an earlier run: its time says nothing of how fast it is."""
    meter = _current.get()
    if meter is not None:
        meter.took = True


def repeated(seconds: float, times: float) -> None:
    """Note that a stage took so many seconds for what it did so often (`Footprint.times`); the rest of its time it
    would have taken for any number."""
    meter = _current.get()
    if meter is not None:
        meter.repeated = (seconds, times)

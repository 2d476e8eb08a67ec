"""What one task measured: time and bytes by stage, quantization error by tensor, which kernel backends ran.

A meter is current only while a task runs (a context variable, so threads do not mix); its record is plain data that
travels back over a Dask edge.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.tensors.stats import ErrorStats


@dataclass(slots=True)
class Tally:
    """Work of one stage: seconds spent in it alone (not in the stages it reads from), bytes taken and given."""

    seconds: float = 0.0
    nbytes_in: int = 0
    nbytes_out: int = 0


@dataclass(slots=True)
class Meter:
    stages: dict[str, Tally] = field(default_factory=dict)
    errors: dict[str, ErrorStats] = field(default_factory=dict)
    backends: set[tuple[str, str]] = field(default_factory=set)
    # One entry for every stage now running: [seconds spent in nested stages, bytes they gave].
    _nested: list[list[float]] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "stages": {name: asdict(t) for name, t in self.stages.items()},
            "errors": {name: e.to_json() for name, e in self.errors.items()},
            "backends": sorted(list(b) for b in self.backends),
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


@contextmanager
def stage(name: str) -> Iterator[list[int]]:
    """Time the body as stage `name`; set element 0 of the yielded list to the bytes that the stage gave."""
    meter = _current.get()
    gave = [0]
    if meter is None:
        yield gave
        return
    meter._nested.append([0.0, 0.0])
    start = time.perf_counter()
    try:
        yield gave
    finally:
        spent = time.perf_counter() - start
        nested_s, taken = meter._nested.pop()
        tally = meter.stages.setdefault(name, Tally())
        tally.seconds += spent - nested_s
        tally.nbytes_in += int(taken)
        tally.nbytes_out += gave[0]
        if meter._nested:
            meter._nested[-1][0] += spent
            meter._nested[-1][1] += gave[0]


def error(tensor: str, stats: ErrorStats) -> None:
    """Add what quantizing a slice of `tensor` lost."""
    meter = _current.get()
    if meter is not None:
        meter.errors[tensor] = meter.errors.get(tensor, ErrorStats()) + stats


def ran(op: str, backend: str) -> None:
    """Note that `backend` did `op`."""
    meter = _current.get()
    if meter is not None:
        meter.backends.add((op, backend))

"""What a benchmark of ops is made of: cases, whoever runs them, and what one process of it measures."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pipeline.backends import DEFINITION, load
from pipeline.errors import short
from pipeline.hooks import hooks_of, optional
from pipeline.running import peak
from pipeline.tensors.qtensor import QTensor

LEAST = 3  # calls whose median counts, unless
LONG = 20  # times as long as was asked for is over
UNITS = 4.0  # what a result may be off by, as `pipeline.testing.model_op` says
WHY = 300  # characters of what went wrong


@dataclass(frozen=True)
class Part:
    """A piece of a case that the definition, which is slow, computes too.

    Attributes:
        args, options: of the call that gives it.
        cut: takes it out of the whole result.
        backend: that computes it: the definition, or where that would take minutes one that tests hold to it, bit for
            bit.
        definition: that computes it in place of a backend, where the op is no room of kernels.
    """

    args: tuple[Any, ...]
    options: Mapping[str, Any]
    cut: Callable[[Any], Any]
    backend: str = DEFINITION
    definition: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Case:
    """A call that is measured.

    Attributes:
        op: a room of kernels, or what an engine does beside these.
        name: its sizes and formats; one of the op has it.
        args, options: NumPy arrays and QTensors.
        flops: operations that it takes, of float32.
        nbytes: that are read and written, each once.
        parts: what its result is held to.
        host: it works on buffers of the host, as conversion does; otherwise it is a part of a compiled program.
        gradients: of so many of the first arguments the gradients are the result, a tuple, and the last argument is
            that of the op's own result; 0: the op's own result.
    """

    op: str
    name: str
    args: tuple[Any, ...]
    options: Mapping[str, Any]
    flops: float
    nbytes: float
    parts: tuple[Part, ...]
    host: bool = False
    gradients: int = 0


class Suite(Protocol):
    """The cases of some ops."""

    @property
    def nbytes(self) -> int:
        """Memory that the largest of them takes, about."""

    def cases(self) -> Iterator[Case]:
        """One after another, each made when it is asked for."""


class Runner(Protocol):
    """Whoever runs ops: a backend of ours, or a peer."""

    @property
    def needs(self) -> Mapping[str, str]:
        """Modules, and what to type where they are not installed."""

    def has(self, op: str) -> bool:
        """Whether it has an op at all, so that cases of it are made."""

    def call(self, case: Case) -> "Callable[[], Any] | str | None":
        """What runs a case, and has its result when it returns; a text: why it cannot; None: it has no such op."""

    def given(self, result: Any) -> Any:
        """A result as NumPy arrays and QTensors."""

    @property
    def unit(self) -> float:
        """What its results may be off by, as a share of their size, where that is more than roundings; else 0."""

    def versions(self) -> Mapping[str, str]: ...


@hooks_of(Runner)
class RunnerHooks:
    """What a runner may have beside that."""

    timed: Callable[[Any, float], Mapping[str, Any] | None] | None = None
    """`timed(call, seconds)`, of what computes on a device with a clock of its own: `s`, seconds of a call that was
    repeated for about `seconds`, and `timed`, how that was measured; None: of this one the host's clock is right."""

    device: Callable[[], Mapping[str, Any]] | None = None
    """What such calls run on, asked when all were measured; empty: the host."""


class Backends(Protocol):
    """Backends of ours, by name or dotted name."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def of(self, name: str, programs: Path | None) -> Runner:
        """
        Args:
            programs: where it may keep what it compiles, for the rounds to come.

        Raises:
            ConfigError: there is no such module.
        """


@dataclass(frozen=True)
class Measure:
    """A process: every case of one runner, timed and checked.

    Attributes:
        suites: by op.
        seconds: that each case is repeated for, after a call that warms up and compiles.
    """

    suites: Mapping[str, Suite]
    runner: Runner
    seconds: float

    def __call__(self) -> Mapping[str, Any]:
        found: dict[str, dict[str, Any]] = {}
        for op, suite in self.suites.items():
            for case in suite.cases() if self.runner.has(op) else ():
                if (row := self._measured(case)) is not None:
                    about = {"op": case.op, "case": case.name, "flops": case.flops, "nbytes": case.nbytes}
                    found[f"{case.op} {case.name}"] = about | row
        device = optional(self.runner, RunnerHooks, "device")
        about_device = dict(device()) if device is not None else {}
        more = {"device": about_device} if about_device else {}
        return {"cases": found, "versions": dict(self.runner.versions()), "peak": peak.nbytes(), **more}

    def _measured(self, case: Case) -> dict[str, Any] | None:
        try:
            call = self.runner.call(case)
            if call is None or isinstance(call, str):
                return None if call is None else {"declined": call}
            wrong, off = wrongness(case, self.runner.given(call()), self.runner.unit)
            timed = optional(self.runner, RunnerHooks, "timed")
            by_device = timed(call, self.seconds) if timed is not None else None
            taken = {"s": _timed(call, self.seconds)} if by_device is None else dict(by_device)
            return {**taken, "wrong": wrong, "off": off}
        except Exception as why:  # of one case: the others are measured all the same
            return {"failed": short(f"{type(why).__name__}: {why}", WHY)}


def _timed(call: Callable[[], Any], seconds: float) -> float:
    """Seconds of a call, the median."""
    took: list[float] = []
    spent = 0.0
    while spent < seconds or len(took) < (LEAST if spent < LONG * seconds else 1):
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
        spent += took[-1]
    return statistics.median(took)


def wrongness(case: Case, found: Any, unit: float) -> tuple[str, float]:
    """Why a result is wrong, empty: it is right; and how far off it is, where 1 is the most that is allowed."""
    furthest = 0.0
    for part in case.parts:
        definition = part.definition or load(case.op, part.backend)
        expected = definition(*part.args, **part.options)
        why, off = _beside(expected, part.cut(found), unit)
        if why:
            return why, off
        furthest = max(furthest, off)
    return "", furthest


def _beside(expected: Any, found: Any, unit: float) -> tuple[str, float]:
    if isinstance(expected, tuple):  # with sums of errors, which are not what is measured
        expected = expected[0]
    if isinstance(expected, QTensor):
        for name, array in expected.components.items():
            if (other := found.components.get(name)) is None or other.shape != array.shape:
                return f"its {name} are not there, or of another shape", 0.0
            if (many := int((np.asarray(other).view(np.uint8) != array.view(np.uint8)).sum())) > 0:
                return f"{many} bytes of {array.nbytes} of its {name} are others than the definition's", 0.0
        return "", 0.0
    expected, found = np.asarray(expected), np.asarray(found)
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return f"{found.dtype} {list(found.shape)}; the definition gives {expected.dtype} {list(expected.shape)}", 0.0
    if expected.dtype.kind in "iu":
        many = int((expected != found).sum())
        return (f"{many} of {expected.size} are others than the definition's" if many else ""), 0.0
    most = UNITS * max(unit, 2.0**-7 if expected.dtype.itemsize == 2 else 2.0**-19)
    wide, theirs = expected.astype(np.float64), found.astype(np.float64)
    if not np.isfinite(theirs).all():
        return "its values are not finite", 0.0
    size = max(float(np.abs(wide).max(initial=0.0)), 1e-6)
    off = float((np.abs(theirs - wide) / (most * (np.abs(wide) + size))).max(initial=0.0))
    return (f"off by {off:.3g} times what roundings allow" if off > 1 else ""), off

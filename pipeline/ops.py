"""Ops: a name, a plain definition, and backends, of which one is chosen before any of them is called.

The choice of backends is a value (a `Kernel` in the config) handed to whoever calls the op; there is no ambient state.
Which of them runs a call follows from what is known without values (`Request`): what a backend cannot do it says
beforehand (`pipeline.backends.declines`), so that planning, loading and tracing come to the same answer, and nothing is
tried. One named backend runs or raises. What ran is reported to the task's meter and ends in the run's manifest, and so
is what had to be left to the next of a list, and why.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, Protocol

import numpy as np

from pipeline import backends, meter, tracing
from pipeline.cpu import instructions
from pipeline.errors import SourceError, StageError
from pipeline.fields import NEUTRAL
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec, dtype_name


@dataclass(frozen=True, slots=True)
class Request:
    """A call as far as it is known without values.

    Attributes:
        op: what is to be done.
        platform: the device that it is to be done on, as JAX names it.
        given: by the names of the definition's parameters: arrays and QTensors as TensorSpecs, the rest as it is.
            What is not known yet, while planning, is absent.
        instructions: of this machine's CPUs, as the operating system names them.
        device: which kind it is, as JAX names it; empty where that is not known.
    """

    op: str
    platform: str
    given: Mapping[str, Any]
    instructions: frozenset[str] = field(default_factory=instructions)
    device: str = ""

    def get(self, name: str, default: Any = None) -> Any:
        """What is given as `name`, or `default` where that is not known."""
        return self.given.get(name, default)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which backend runs a call, and why those before it do not.

    Attributes:
        backend: None when all decline.
        declined: (backend, reason), in order.
    """

    backend: str | None
    declined: tuple[tuple[str, str], ...] = ()

    @property
    def reasons(self) -> str:
        return "; ".join(f"{name}: {reason}" for name, reason in self.declined)


@dataclass(frozen=True)
class Kernel:
    """An op with the backends chosen for it; what `${kernels.OP}` is in a config.

    Attributes:
        op: its room under plugins/kernels.
        backends: names tried in order; see `pipeline.backends`.
        platform: of the device that it runs on. An engine that runs models says which (`on`).
        device: which kind it is, as JAX names it; empty where that is not known, or makes no difference.
    """

    op: str
    backends: tuple[str, ...]
    platform: str = "cpu"
    device: str = ""

    def __post_init__(self) -> None:
        backends.check(self.op, self.backends)

    def on(self, platform: str, device: str = "") -> "Kernel":
        """The same for another device."""
        return replace(self, platform=platform, device=device)

    def named(self) -> "Kernel":
        """The same without `backends.FASTEST`, where others are named."""
        return replace(self, backends=tuple(n for n in self.backends if n != backends.FASTEST) or self.backends)

    @property
    def resident(self) -> int:
        """Bytes that a process keeps for whichever of the backends it uses."""
        return max(backends.about(name).resident for name in self.backends)

    @property
    def traced(self) -> bool:
        """Whether it becomes a part of compiled programs, whichever of the backends runs."""
        return all(backends.about(name).traced for name in self.backends)

    def resolve(self, *args: Any, **options: Any) -> Choice:
        """Which backend runs this call. Arrays may be traced ones, or TensorSpecs."""
        return self._chosen(self.request(*args, **options))

    def choose(self, given: Mapping[str, Any]) -> Choice:
        """The same of arguments by name, as far as they are known."""
        return self._chosen(self._request(given))

    def request(self, *args: Any, **options: Any) -> Request:
        """This call, as backends are asked about it."""
        bound = _signature(self.op).bind(*args, **options)
        bound.apply_defaults()
        return self._request(bound.arguments)

    def _request(self, given: Mapping[str, Any]) -> Request:
        known = {name: _abstract(value) for name, value in given.items()}
        for name, parameter in _signature(self.op).parameters.items():
            known |= known.pop(name, {}) if parameter.kind is parameter.VAR_KEYWORD else {}
        return Request(self.op, self.platform, known, device=self.device)

    def _chosen(self, request: Request) -> Choice:
        declined: list[tuple[str, str]] = []
        for name, why in _tried(self.backends, request):
            if (reason := why or _reason(name, request)) is None:
                return Choice(name, tuple(declined))
            declined.append((name, reason))
        return Choice(None, tuple(declined))

    def __call__(self, *args: Any, **options: Any) -> Any:
        """
        Raises:
            StageError: all backends decline; says why.
        """
        choice = self.resolve(*args, **options)
        if choice.backend is None:
            raise StageError(f"no chosen backend of {self.op} can do this ({choice.reasons})")
        backend = backends.load(self.op, choice.backend)
        start = tracing.clock() if tracing.active else 0.0
        result = backend(*args, **options)
        if start:
            tracing.kernel(start, self.op, choice.backend, (args, options), result)
        self._tell(choice, choice.backend)
        return result

    def together(self, *calls: tuple[Any, ...]) -> list[Any]:
        """The results of calls that need nothing of each other, each given by its arguments: at once, where one backend
        runs them all and can do that (`backends.together`), else one by one.

        Raises:
            StageError: all backends decline one of them; says why.
        """
        choices = [self.resolve(*args) for args in calls]
        names = {choice.backend for choice in choices}
        name = names.pop() if len(names) == 1 else None
        at_once = None if name is None else backends.together(self.op, name)
        if name is None or at_once is None:
            return [self(*args) for args in calls]
        start = tracing.clock() if tracing.active else 0.0
        results = at_once(calls)
        if start:
            tracing.kernel(start, self.op, name, calls, results)
        for choice in choices:
            self._tell(choice, name)
        return results

    def _tell(self, choice: Choice, ran: str) -> None:
        meter.ran(self.op, ran)
        for backend, reason in choice.declined:
            meter.declined(self.op, backend, reason, ran)


class RunsModels(Protocol):
    """What `pipeline.planning.kernels` asks of the engine that a stage has in a field."""

    def calls(self, checkpoint: Any, *, rows: int = 1) -> "Iterable[Call]":
        """See `pipeline.engine.Engine.calls`."""
        ...

    def load(self, checkpoint: Any, *, plain: bool = False) -> Any:
        """See `pipeline.engine.Engine.load`."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """A call that will be made, known before anything is read.

    Attributes:
        kernel: what is called.
        where: the tensor that it is for, or the part of the model.
        given: arguments by name, as far as they are known; arrays as TensorSpecs.
    """

    kernel: Kernel
    where: str
    given: Mapping[str, Any]

    @property
    def encoding(self) -> str:
        """Of the weights that it takes; empty where it takes none."""
        taken = (self.given.get(name) for name in ("w", "w_in", "q", "x"))
        found = next((v for v in taken if v is not None), None)
        found = found[0] if isinstance(found, tuple) else found
        return found.encoding if isinstance(found, TensorSpec) else ""


def _tried(names: tuple[str, ...], request: Request) -> Iterator[tuple[str, str]]:
    """(backend, why it is none) in order, with those that `backends.FASTEST` stands for. That this is nothing on a
    platform without tables goes without saying, where others are named too."""
    for name in names:
        if name != backends.FASTEST:
            yield name, ""
        elif len(names) == 1 or request.platform in backends.MEASURED:
            found, why = backends.fastest(request)
            yield from ((other, "") for other in found)
            if not found:
                yield name, why


def _reason(backend: str, request: Request) -> str | None:
    platforms = backends.about(backend).platforms
    if platforms is not None and request.platform not in platforms:
        return f"runs on {', '.join(platforms)}, not on {request.platform}"
    if "." in backend:  # nobody's tests have seen it: that it is one is known now, and not when it is called
        backends.load(request.op, backend)
    declines = backends.declines(request.op, backend)
    return (declines(request) if declines is not None else None) or backends.missing(backend)


def _abstract(value: Any) -> Any:
    """Arrays as what is known of them without their values."""
    if isinstance(value, QTensor):
        return TensorSpec(tuple(value.shape), "BF16", value.scheme)
    if isinstance(value, tuple | list):
        return tuple(_abstract(v) for v in value)
    if isinstance(value, type | TensorSpec | np.dtype) or not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return value
    try:
        return TensorSpec(tuple(value.shape), dtype_name(np.dtype(value.dtype)))
    except SourceError:  # a dtype that no file has
        return TensorSpec(tuple(value.shape), str(value.dtype))


@cache
def _signature(op: str) -> inspect.Signature:
    return inspect.signature(backends.load(op, backends.DEFINITION))


def kernels_of(node: Any) -> Iterator[Kernel]:
    """The kernels in the fields of a stage and of the plugins that it holds; what is `NEUTRAL` computes nothing."""
    if isinstance(node, Kernel):
        yield node
    elif is_dataclass(node) and not isinstance(node, type):
        for f in fields(node):
            if f.metadata != NEUTRAL:
                yield from kernels_of(getattr(node, f.name))
    elif isinstance(node, Mapping):
        for value in node.values():
            yield from kernels_of(value)

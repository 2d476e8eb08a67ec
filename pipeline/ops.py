"""Ops: a name, a plain definition, and backends imported only when chosen.

The choice of backends is a value (a `Kernel` in the config) handed to whoever calls the op; there is no ambient state.
One named backend runs or raises. A list is tried in order, and only `Unsupported` means "next". What ran is reported
to the task's meter and ends in the run's manifest, and so is what had to be left to the next of a list, and why.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import Any, ClassVar

from pipeline import meter
from pipeline.errors import ConfigError, StageError, Unsupported, did_you_mean


@dataclass(frozen=True, slots=True)
class Op:
    """A function with one meaning and several implementations.

    Attributes:
        name: the op's room under plugins/kernels.
        backends: backend name → `module:callable`. `reference` is the definition: plain, slow, the meaning of the op.
        resident: backend name → bytes that a process keeps once it has used it, where that is much: a framework.
    """

    name: str
    backends: Mapping[str, str]
    resident: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "reference" not in self.backends:
            raise TypeError(f"op {self.name!r} has no 'reference' backend: the definition is not optional")


@cache
def load(target: str) -> Callable[..., Any]:
    """Import `module:callable`. An ImportError is the caller's to see: a backend that was asked for must exist."""
    module, _, name = target.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


@dataclass(frozen=True)
class Kernel:
    """An op with the backends chosen for it; a plugin node in the config. Subclasses set `op`.

    Attributes:
        backends: names tried in order.
    """

    op: ClassVar[Op]
    backends: tuple[str, ...] = ("numpy",)

    def __post_init__(self) -> None:
        if not self.backends:
            raise ConfigError(f"{self.op.name}: no backend chosen{did_you_mean('', self.op.backends)}")
        for name in self.backends:
            if name not in self.op.backends:
                raise ConfigError(f"{self.op.name}: backend {name!r} is unknown{did_you_mean(name, self.op.backends)}")

    @property
    def resident(self) -> int:
        """Bytes that a process keeps for whichever of the backends it uses."""
        return max(self.op.resident.get(name, 0) for name in self.backends)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        declined = []
        for name in self.backends:
            try:
                result = load(self.op.backends[name])(*args, **kwargs)
            except Unsupported as why:
                declined.append((name, why.reason))
                continue
            meter.ran(self.op.name, name)
            for backend, reason in declined:
                meter.declined(self.op.name, backend, reason, name)
            return result
        reasons = "; ".join(f"{name}: {reason}" for name, reason in declined)
        raise StageError(f"no chosen backend of {self.op.name} can do this ({reasons})")


def kernels_of(node: Any) -> Iterator[Kernel]:
    """The kernels in the fields of a stage and of the plugins that it holds."""
    if isinstance(node, Kernel):
        yield node
    elif is_dataclass(node) and not isinstance(node, type):
        for f in fields(node):
            yield from kernels_of(getattr(node, f.name))
    elif isinstance(node, Mapping):
        for value in node.values():
            yield from kernels_of(value)

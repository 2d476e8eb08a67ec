"""Backends of ours as they run in conversion and in models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from pipeline import backends
from pipeline.bench.op import Case
from pipeline.errors import ConfigError
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor


@dataclass(frozen=True)
class Ours:
    """See `pipeline.bench.op.Runner`.

    Attributes:
        backend: its name, or the dotted name of a module.
    """

    backend: str

    @property
    def needs(self) -> Mapping[str, str]:
        return {}

    @property
    def unit(self) -> float:
        return backends.about(self.backend).unit

    def versions(self) -> Mapping[str, str]:
        return {name: version(name) for name in ("jax", "jaxlib", "numpy")}

    def call(self, case: Case) -> Callable[[], Any] | str | None:
        if not self._has(case.op):
            return None
        kernel = Kernel(case.op, (self.backend,))
        if reasons := kernel.resolve(*case.args, **case.options).reasons:
            return reasons
        return partial(kernel, *case.args, **case.options) if case.host else _compiled(kernel, case)

    def _has(self, op: str) -> bool:
        if "." not in self.backend:
            return self.backend in backends.backends_of(op)
        try:
            backends.load(op, self.backend)
        except ConfigError:
            return False
        return True

    def given(self, result: Any) -> Any:
        if isinstance(result, QTensor):
            parts = {name: np.asarray(array) for name, array in result.components.items()}
            return QTensor(scheme=result.scheme, **parts)
        return np.asarray(result)


def _compiled(kernel: Kernel, case: Case) -> Callable[[], Any]:
    """The case as a program, on arrays that are on the device already."""
    import jax

    import pipeline.tensors.pytree  # noqa: F401  QTensors may be traced

    static = {i: v for i, v in enumerate(case.args) if not _is_data(v)}
    options = {k: v for k, v in case.options.items() if not _is_data(v)}
    args, more = jax.device_put((
        tuple(v for v in case.args if _is_data(v)), {k: v for k, v in case.options.items() if _is_data(v)}
    ))  # fmt: skip

    def whole(given: tuple[Any, ...], more: Mapping[str, Any]) -> Any:
        rest = iter(given)
        return kernel(*(static[i] if i in static else next(rest) for i in range(len(case.args))), **more, **options)

    program = jax.jit(whole)
    return lambda: jax.block_until_ready(program(args, more))  # type: ignore[no-untyped-call]


def _is_data(value: Any) -> bool:
    """Whether it holds arrays."""
    if isinstance(value, tuple):
        return any(map(_is_data, value))
    return isinstance(value, np.ndarray | QTensor)


@dataclass(frozen=True)
class Backends:
    """See `pipeline.bench.op.Backends`."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(backends.BACKENDS)

    def of(self, name: str) -> Ours:
        backends.about(name)  # imports that of somebody else, or says that it is not there
        return Ours(name)

"""Backends of ours as they run in conversion and in models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import backends
from pipeline.bench.op import Case
from pipeline.errors import ConfigError
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from plugins.bench.ops import on_device, sample


@dataclass(frozen=True)
class Ours:
    """See `pipeline.bench.op.Runner`.

    Attributes:
        backend: its name, or the dotted name of a module.
        programs: what it compiles is kept there, and compiled once for all rounds; None: nowhere.
    """

    backend: str
    programs: Path | None = None

    @property
    def needs(self) -> Mapping[str, str]:
        return {}

    @property
    def unit(self) -> float:
        return backends.about(self.backend).unit

    def versions(self) -> Mapping[str, str]:
        return {name: version(name) for name in ("jax", "jaxlib", "numpy")}

    def call(self, case: Case) -> Callable[[], Any] | str | None:
        if self.programs is not None:
            _keep_programs(self.programs)
        if case.op == sample.OP:
            return sample.compiled(case)
        kernel = Kernel(case.op, (self.backend,), "cpu" if case.host else _platform())
        args = case.args[:-1] if case.gradients else case.args
        if reasons := kernel.resolve(*args, **case.options).reasons:
            return reasons
        return partial(kernel, *args, **case.options) if case.host else _compiled(kernel, case)

    def timed(self, call: Any, seconds: float) -> Mapping[str, Any] | None:
        """See `pipeline.bench.op.RunnerHooks`: programs on a GPU by its own clock."""
        return call.took(seconds).row if isinstance(call, on_device.Program) else None

    def device(self) -> Mapping[str, Any]:
        """See `pipeline.bench.op.RunnerHooks`."""
        return on_device.device() if on_device.is_gpu() else {}

    def has(self, op: str) -> bool:
        if op == sample.OP:
            return self.backend == "xla"
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
        return tuple(map(self.given, result)) if isinstance(result, tuple) else np.asarray(result)


def _platform() -> str:
    import jax

    return jax.default_backend()


def _keep_programs(folder: Path) -> None:
    import jax

    settings = {
        "jax_compilation_cache_dir": str(folder), "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }  # fmt: skip
    for name, value in settings.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]


def _compiled(kernel: Kernel, case: Case) -> Callable[[], Any]:
    """The case as a program, on arrays that are on the device already."""
    import jax

    import pipeline.tensors.pytree  # noqa: F401  QTensors may be traced

    static = {i: v for i, v in enumerate(case.args) if not _is_data(v)}
    options = {k: v for k, v in case.options.items() if not _is_data(v)}
    args, more = jax.device_put((
        tuple(v for v in case.args if _is_data(v)), {k: v for k, v in case.options.items() if _is_data(v)}
    ))  # fmt: skip

    many = len(case.args) - bool(case.gradients)

    def whole(given: tuple[Any, ...], more: Mapping[str, Any]) -> Any:
        rest = iter(given)
        return kernel(*(static[i] if i in static else next(rest) for i in range(many)), **more, **options)

    def backward(given: tuple[Any, ...], more: Mapping[str, Any]) -> Any:
        first, rest, dy = given[: case.gradients], given[case.gradients : -1], given[-1]
        return jax.vjp(lambda *first: whole((*first, *rest), more), *first)[1](dy)

    return on_device.compiled(jax.jit(backward if case.gradients else whole), args, more)


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

    def of(self, name: str, programs: Path | None) -> Ours:
        backends.about(name)  # imports that of somebody else, or says that it is not there
        return Ours(name, programs)

"""Models with kernels that cannot be compiled: the definitions are plain NumPy, a value at a time.

With one of them among its kernels a model runs op by op, as Python comes to it, on arrays that are there. Slow, and
meant for small models: what the definitions give is what all other backends must give.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import jax.numpy as jnp

from plugins.models.common.ops import Ops


def is_eager(ops: Ops) -> bool:
    """Whether a kernel among `ops` may run a backend that is no part of JAX programs."""
    return not all(getattr(kernel, "traced", True) for kernel in _kernels(ops).values())


def on_arrays(ops: Ops) -> Ops:
    """`ops` whose results are JAX arrays, whatever their backends give: a model's own arithmetic is JAX's."""
    found: dict[str, Any] = {name: _OnArrays(kernel) for name, kernel in _kernels(ops).items()}
    return replace(ops, **found)


@dataclass(frozen=True)
class _OnArrays:
    kernel: Callable[..., Any]

    def __call__(self, *args: Any, **options: Any) -> Any:
        return jnp.asarray(self.kernel(*args, **options))

    def together(self, *calls: tuple[Any, ...]) -> list[Any]:
        return [self(*args) for args in calls]


def _kernels(ops: Ops) -> dict[str, Callable[..., Any]]:
    return {f.name: getattr(ops, f.name) for f in fields(ops)}

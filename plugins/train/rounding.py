"""Rounding inside a compiled program, which gradients go straight through."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline import subnormals
from pipeline.errors import ValueRangeError
from pipeline.method import Method
from pipeline.tensors.spec import numpy_dtype
from plugins.models.common.rounding import Rounder
from plugins.train.stand_in import StandIn


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def as_written(w: Any, dtype: str) -> Any:
    """float32 `w` as it is once it was written as `dtype` (F32, BF16 or F16)."""
    if dtype == "F32":
        return w
    # XLA may leave out a conversion and its inverse (xla_allow_excess_precision), but for the barrier.
    narrow = jax.lax.optimization_barrier(w.astype(numpy_dtype(dtype)))  # type: ignore[no-untyped-call]
    return narrow.astype(jnp.float32)


def _forward(w: Any, dtype: str) -> tuple[Any, None]:
    return as_written(w, dtype), None


def _backward(dtype: str, kept: None, dy: Any) -> tuple[Any]:
    return (dy,)


as_written.defvjp(_forward, _backward)


@dataclass(frozen=True)
class Hosted:
    """A method as a function of whole float32 tensors, on the host.

    Attributes:
        stack: of several tensors, which are quantized one by one.
    """

    method: Method
    stack: bool

    @subnormals.kept()
    def __call__(self, w: Any) -> Any:
        """What `w` decodes to, to the bit as when it is written; NaN where it cannot be quantized, as in compiled
        programs."""
        given = np.asarray(w)
        try:
            found = [self.method.decode(self.method.encode(one), "F32") for one in (given if self.stack else (given,))]
        except ValueRangeError:
            return np.full_like(given, np.nan)
        return np.stack(found) if self.stack else np.asarray(found[0])


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def through_host(w: Any, by: Hosted) -> Any:
    """float32 `w` as `by` makes it."""
    like = jax.ShapeDtypeStruct(w.shape, jnp.float32)  # type: ignore[no-untyped-call]
    return jax.pure_callback(by, like, w, vmap_method="sequential")


def _to_host(w: Any, by: Hosted) -> tuple[Any, None]:
    return through_host(w, by), None


def _from_host(by: Hosted, kept: None, dy: Any) -> tuple[Any]:
    return (dy,)


through_host.defvjp(_to_host, _from_host)


@partial(jax.tree_util.register_dataclass, data_fields=["base"], meta_fields=["rounder"])
@dataclass(frozen=True, slots=True)
class Rounding(StandIn):
    """What a parameter holds whose input is to be rounded.

    Attributes:
        base: the weights.
        rounder: rounds the input.
    """

    base: Any
    rounder: Rounder

    def around(self, base: Any) -> "Rounding":
        """See `plugins.mesh.collectives.Around`."""
        return replace(self, base=base)

    def seen(self, x: Any) -> Any:
        """x `[…, n]`, each row rounded by itself."""
        return self.rounder(x)

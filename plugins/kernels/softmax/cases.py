"""Named calls of softmax, and its formula as JAX differentiates it in float64: what backends are held to."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.testing.kernel import Case
from plugins.kernels.cases import BF16, normal, rng_of


def cases() -> Iterator[Case]:
    rng = rng_of("softmax")
    x = normal(rng, 2, 3, 5) * 4
    seen = rng.random((2, 3, 5)) < 0.5
    seen[1, 2] = False
    yield Case("last axis", (x,))
    yield Case("middle axis", (x,), {"axis": 1})
    yield Case("bf16", (x.astype(BF16),))
    yield Case("large", (x * 1e4,))
    yield Case("where", (x,), {"where": seen})
    yield Case("sinks", (x,), {"sinks": normal(rng, 1, 3, 1)})
    yield Case("sinks of the first axis", (x,), {"sinks": normal(rng, 1, 1, 5) * 30, "axis": 0})
    yield Case("sinks and where", (x,), {"sinks": normal(rng, 1, 3, 1), "where": seen})
    yield Case("minus infinity", (np.where(seen, x, -np.inf).astype(np.float32),), {"where": seen})


def in_float64(x: Any, *, axis: int = -1, sinks: Any = None, where: Any = None) -> Any:
    seen = jnp.ones(x.shape, bool) if where is None else jnp.broadcast_to(where, x.shape)
    seen = seen & ~jnp.isneginf(x)
    x = jnp.where(seen, x, 0)
    top = jnp.where(seen, x, -jnp.inf).max(axis=axis, keepdims=True)
    top = jnp.where(jnp.isneginf(top), 0, top) if sinks is None else jnp.maximum(top, sinks)
    top = jax.lax.stop_gradient(top)
    weights = jnp.where(seen, jnp.exp(x - top), 0)
    total = weights.sum(axis=axis, keepdims=True)
    total = total if sinks is None else total + jnp.exp(sinks - top)
    return weights / jnp.where(total == 0, 1, total)

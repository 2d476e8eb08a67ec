"""softmax in jnp."""

from typing import Any

import jax.numpy as jnp
from jax import lax


def softmax(x: Any, *, axis: int = -1, sinks: Any = None, where: Any = None) -> Any:
    """See the op's docstring."""
    x = jnp.asarray(x)
    logits = x.astype(jnp.float32)
    seen = None if where is None else jnp.asarray(where)
    lowest = logits if seen is None else jnp.where(seen, logits, -jnp.inf)
    top = jnp.max(lowest, axis=axis, keepdims=True, initial=-jnp.inf)
    extra = None
    if sinks is not None:
        extra = jnp.asarray(sinks).astype(jnp.float32)
        top = jnp.maximum(top, extra)
    top = jnp.where(jnp.isneginf(top), 0.0, top)  # nothing takes part: no -inf - -inf
    top = lax.stop_gradient(top)  # the result does not depend on it
    weights = jnp.exp(lowest - top)
    total = jnp.sum(weights, axis=axis, keepdims=True)
    if extra is not None:
        total = total + jnp.exp(extra - top)
    return (weights / jnp.where(total == 0, 1.0, total)).astype(x.dtype)

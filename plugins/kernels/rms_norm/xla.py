"""rms_norm in jnp."""

from typing import Any

import jax.numpy as jnp
from jax import lax


def rms_norm(x: Any, weight: Any, *, eps: float, plus_one: bool = False) -> Any:
    """See the op's docstring."""
    x = jnp.asarray(x)
    wide, gain = x.astype(jnp.float32), jnp.asarray(weight).astype(jnp.float32)
    gain = (1 + gain if plus_one else gain).reshape(*(1,) * (x.ndim - 1), -1)
    mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    return (wide * lax.rsqrt(mean_square + eps) * gain).astype(x.dtype)

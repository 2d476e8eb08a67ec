"""rope in jnp."""

from typing import Any

import jax.numpy as jnp


def rope(x: Any, positions: Any, inv_freq: Any, *, concentration: float = 1.0, interleaved: bool = False) -> Any:
    """See the op's docstring."""
    x, inv_freq = jnp.asarray(x), jnp.asarray(inv_freq, jnp.float32)
    half = inv_freq.shape[0]
    angle = jnp.asarray(positions).astype(jnp.float32)[:, :, None, None] * inv_freq[None, None, None, :]
    cos, sin = jnp.cos(angle) * concentration, jnp.sin(angle) * concentration
    turned, rest = x[..., : 2 * half].astype(jnp.float32), x[..., 2 * half :]
    if interleaved:
        pairs = turned.reshape(*turned.shape[:-1], half, 2)
        a, b = pairs[..., 0], pairs[..., 1]
        turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(turned.shape)
    else:
        a, b = turned[..., :half], turned[..., half:]
        turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return jnp.concatenate([turned.astype(x.dtype), rest], axis=-1)

"""Named calls of rope, and its formula as JAX differentiates it in float64: what backends are held to."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from pipeline.testing.kernel import Case
from plugins.kernels.cases import BF16, normal, rng_of

CONSTANTS = (2,)  # inv_freq


def cases() -> Iterator[Case]:
    rng = rng_of("rope")
    x = normal(rng, 2, 3, 5, 8)
    at = np.array([[0, 1, 2], [7, 1000, 131071]], np.int32)
    inv_freq = (10000.0 ** (-np.arange(4) / 4)).astype(np.float32)
    yield Case("split half", (x, at, inv_freq))
    yield Case("interleaved", (x, at, inv_freq), {"interleaved": True})
    yield Case("concentration", (x, at, inv_freq), {"concentration": 1.3466})
    yield Case("a part", (x, at, inv_freq[:3]))
    yield Case("a part, interleaved", (x, at, inv_freq[:3]), {"interleaved": True})
    yield Case("bf16", (x.astype(BF16), at, inv_freq))


def in_float64(x: Any, positions: Any, inv_freq: Any, *, concentration: float = 1.0, interleaved: bool = False) -> Any:
    """Angles are float32 products, as the op has them."""
    half = inv_freq.shape[0]
    angle = positions.astype(jnp.float32)[:, :, None, None] * inv_freq.astype(jnp.float32)[None, None, None]
    cos, sin = (f(angle.astype(jnp.float64)) * concentration for f in (jnp.cos, jnp.sin))
    i = jnp.arange(half)
    first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
    a, b = x[..., first], x[..., second]
    return x.at[..., first].set(a * cos - b * sin).at[..., second].set(b * cos + a * sin)

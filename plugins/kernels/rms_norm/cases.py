"""Named calls of rms_norm, and its formula as JAX differentiates it in float64: what backends are held to."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from pipeline.testing.kernel import Case
from plugins.kernels.cases import BF16, normal, rng_of


def cases() -> Iterator[Case]:
    rng = rng_of("rms_norm")
    x, weight = normal(rng, 2, 3, 20), normal(rng, 20)
    yield Case("plain", (x, weight), {"eps": 1e-5})
    yield Case("plus one", (x, weight), {"eps": 1e-5, "plus_one": True})
    yield Case("large eps", (x, weight), {"eps": 2.0})
    yield Case("zeros", (np.zeros_like(x), weight), {"eps": 1e-6})
    yield Case("large", (x * 1e15, weight), {"eps": 1e-6})
    yield Case("bf16", (x.astype(BF16), weight.astype(BF16)), {"eps": 1e-5})
    yield Case("vector", (x[0, 0], weight), {"eps": 1e-5})


def in_float64(x: Any, weight: Any, *, eps: float, plus_one: bool = False) -> Any:
    gain = (1 + weight if plus_one else weight).reshape((1,) * (x.ndim - 1) + (-1,))
    return x / jnp.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * gain

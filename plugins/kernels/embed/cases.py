"""Named calls of embed, and its formula as JAX differentiates it in float64: what backends are held to."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.testing.kernel import Case
from pipeline.testing.memory import quantized
from plugins.kernels.cases import BF16, BY_STRUCTS, SCHEMES, normal, rng_of


def cases() -> Iterator[Case]:
    rng = rng_of("embed")
    ids = rng.integers(0, 11, (2, 5)).astype(np.int32)
    for dtype in (np.float32, BF16):
        yield Case(f"plain {np.dtype(dtype).name}", (ids, normal(rng, 11, 6)), {"dtype": dtype})
        for name, scheme in {**SCHEMES, **BY_STRUCTS}.items():
            yield Case(f"{name} {np.dtype(dtype).name}", (ids, quantized(scheme, (11, 256))), {"dtype": dtype})


def in_float64(ids: Any, w: Any, **_: Any) -> Any:
    return jnp.einsum("...v,vd->...d", jax.nn.one_hot(ids, w.shape[0], dtype=w.dtype), w)

"""Named calls of matmul, and its formula as JAX differentiates it in float64: what backends are held to."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from pipeline.testing.kernel import Case
from pipeline.testing.memory import quantized
from plugins.kernels.cases import BF16, BY_STRUCTS, NOT_FINITE, SCHEMES, normal, not_finite, rng_of


def cases() -> Iterator[Case]:
    for dtype in (np.float32, BF16):
        name = np.dtype(dtype).name
        for lead in ((), (1,), (3,), (2, 5)):
            rng = rng_of(f"{name} {lead}")
            x, w = normal(rng, *lead, 64, dtype=dtype), normal(rng, 7, 64, dtype=dtype)
            yield Case(f"plain {name} {lead}", (x, w))
        yield Case(f"plain {name}, bias", (x, w, normal(rng, 7, dtype=dtype)))
        yield Case(f"plain {name}, wider out", (x, w), {"out_dtype": np.float32})
        yield Case(f"float32 weights under {name}", (x, normal(rng, 7, 64)))
        for scheme_name, scheme in SCHEMES.items():
            rng = rng_of(f"{name} {scheme_name}")
            for rows in (1, 3):
                w = quantized(scheme, (8, 128), seed=rows)
                case = f"{scheme_name} {name} {rows}"
                yield Case(case, (normal(rng, rows, 128, dtype=dtype), w, normal(rng, 8)))
        for scheme_name, scheme in BY_STRUCTS.items():
            rng, rows = rng_of(f"{name} {scheme_name}"), 1 if dtype == BF16 else 3
            yield Case(f"{scheme_name} {name}", (normal(rng, rows, 256, dtype=dtype), quantized(scheme, (8, 256))))
        for scheme_name, rows in (("int8", 3), ("int8", 6), ("int8, odd blocks", 2), ("q4_1", 2), ("int8 a row", 1)):
            x, w = not_finite(NOT_FINITE[scheme_name], rows)
            yield Case(f"not finite, {scheme_name} {name} {rows}", (x.astype(dtype), w))


def in_float64(x: Any, w: Any, bias: Any = None, **_: Any) -> Any:
    y = jnp.einsum("...i,oi->...o", x, w)
    return y if bias is None else y + bias.reshape((1,) * (y.ndim - 1) + (-1,))

"""dequantize for power-of-two scales as one XLA look-up: (scale, code) → value, with subnormals as NumPy made them."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.errors import Unsupported
from pipeline.tensors.spec import numpy_dtype
from plugins.kernels.cast.numpy_backend import cast
from plugins.kernels.codecs import bits, scales
from plugins.kernels.codecs.elements import element
from plugins.kernels.dequantize import Overflow, check


@cache
def table(name: str, dtype: str) -> Any:
    """Patterns of the value of every code under every E8M0 byte, flat."""
    with np.errstate(over="ignore", invalid="ignore"):
        values = scales.powers()[:, None] * element(name).values
    found = cast(values, dtype, overflow="inf").reshape(-1)
    return found.view(f"u{found.itemsize}")


@jax.jit
def _values(lut: Any, codes: Any, scale: Any) -> Any:
    per = lut.size // 256
    return jnp.take(lut, codes.astype(jnp.int32) + scale.astype(jnp.int32)[:, None] * per)


def dequantize(q: Any, dtype: str = "BF16", *, overflow: Overflow = "error") -> Any:
    """See the op's docstring."""
    check(q.scheme, dtype, overflow)
    if q.scheme.scale != "e8m0" or q.scheme.block_rows != 1 or dtype == "F16":
        raise Unsupported(f"xla decodes e8m0 scales within a row to BF16 and F32, not {q.scheme} to {dtype}")
    codes = bits.unpack(np.ascontiguousarray(q.codes), q.scheme.element_bits)
    block = q.scheme.block_elems or q.shape[-1]
    found = _values(table(q.scheme.element, dtype), codes.reshape(-1, block), np.asarray(q.scales).reshape(-1))
    return np.asarray(found).view(numpy_dtype(dtype)).reshape(q.shape)

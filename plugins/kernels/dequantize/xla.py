"""dequantize with XLA: `traced.decode` on whole tensors, and a NumPy array of what comes out.

Below the normal range of float32, which XLA flushes on CPUs, real scales need NumPy: tensors that have factors so small
that a value may be subnormal are `Unsupported`, by their scales, before anything is decoded. So is F16, whose range is
checked value by value.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pipeline.tensors.pytree  # noqa: F401
from pipeline.errors import Unsupported
from pipeline.tensors.qtensor import QTensor
from plugins.kernels.codecs import scales
from plugins.kernels.codecs.elements import element
from plugins.kernels.dequantize import Overflow, check
from plugins.kernels.dequantize.traced import decode
from plugins.kernels.pieces import dequantized

PIECE = 1 << 18  # elements: see quantize
_DTYPES = {"BF16": jnp.bfloat16, "F32": jnp.float32}
_decode = jax.jit(decode, static_argnums=1)


def dequantize(q: Any, dtype: str = "BF16", *, overflow: Overflow = "error") -> Any:
    """See the op's docstring."""
    check(q.scheme, dtype, overflow)
    if dtype not in _DTYPES:
        raise Unsupported(f"xla decodes to BF16 and F32, not to {dtype}, whose overflows it cannot report")
    if q.scheme.scale != "e8m0":
        _refuse_subnormals(q)
    return dequantized(_dequantize, q, dtype, PIECE, overflow=overflow)


def _dequantize(q: Any, dtype: str, *, overflow: Overflow) -> Any:
    return np.asarray(_decode(QTensor(scheme=q.scheme, **q.components), _DTYPES[dtype]))


def _refuse_subnormals(q: Any) -> None:
    """Unsupported when the smallest value under the smallest factor is no normal float32."""
    e = element(q.scheme.element)
    magnitudes = np.abs(e.values)
    least = float(magnitudes[magnitudes > 0].min())
    if q.scheme.zero == "min_f16":
        least *= 2.0**-24  # a product's last place, which may be all that a sum with a minimum leaves
    factors = np.abs(scales.totals(q))
    factors = factors[factors > 0]
    if factors.size and float(factors.min()) * least < 2.0**-126:
        raise Unsupported("xla flushes values below 2^-126, and the smallest scales make such ones")

"""dequantize with XLA: `traced.decode` on whole tensors, and a NumPy array of what comes out.

Below the normal range of float32 XLA flushes on CPUs. Tensors under real scales so small that a value may lie there are
decoded by integer arithmetic, which takes longer; their scales tell, before anything is decoded.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pipeline.tensors.pytree  # noqa: F401
from pipeline.tensors.qtensor import QTensor
from plugins.kernels.codecs import scales
from plugins.kernels.codecs.elements import element
from plugins.kernels.dequantize import Overflow, check
from plugins.kernels.dequantize.traced import decode
from plugins.kernels.pieces import dequantized

PIECE = 1 << 18  # elements: see quantize
DTYPES = {"BF16": jnp.bfloat16, "F32": jnp.float32}
_decode = jax.jit(decode, static_argnums=(1, 2))


def dequantize(q: Any, dtype: str = "BF16", *, overflow: Overflow = "error") -> Any:
    """See the op's docstring."""
    check(q.scheme, dtype, overflow)
    return dequantized(_dequantize, q, dtype, PIECE, overflow=overflow)


def on_device(q: Any, dtype: Any) -> Any:
    """The values of `q`, all of which is on one device, there: bits are those of the op.

    Args:
        dtype: jnp.float32 or jnp.bfloat16.
    """
    seen = {name: q.components[name] if name == "codes" else np.asarray(a) for name, a in q.components.items()}
    return _decode(q, dtype, _has_subnormals(QTensor(scheme=q.scheme, **seen)))


def _dequantize(q: Any, dtype: str, *, overflow: Overflow) -> Any:
    return np.asarray(on_device(QTensor(scheme=q.scheme, **q.components), DTYPES[dtype]))


def _has_subnormals(q: Any) -> bool:
    """Whether the smallest value under the smallest real scale is no normal float32."""
    if q.scheme.scale == "e8m0" or q.scheme.is_struct:  # the decoder is exact everywhere
        return False
    e = element(q.scheme.element)
    magnitudes = np.abs(e.values)
    least = float(magnitudes[magnitudes > 0].min())
    if q.scheme.zero == "min_f16":
        least *= 2.0**-24  # a product's last place, which may be all that a sum with a minimum leaves
    factors = np.abs(scales.totals(q))
    factors = factors[factors > 0]
    return bool(factors.size and float(factors.min()) * least < 2.0**-126)

"""Arrays on devices as QTensors on the same devices, divided over them as they are: nothing passes through the host.

It is what traced programs do (`traced`), and their codes packed into bytes. Bits are those of the op. What makes the op
raise comes back as one number, which whoever asks has to look at.
"""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pipeline.tensors.pytree  # noqa: F401 - QTensor as a pytree
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import numpy_dtype
from plugins.kernels.codecs.jax_float import widened
from plugins.kernels.dequantize.traced import scaled
from plugins.kernels.quantize.reach import PAST_BF16
from plugins.kernels.quantize.recipe import Recipe
from plugins.kernels.quantize.xla.traced import Coded, coded


@lru_cache(maxsize=256)
def program(scheme: Scheme, recipe: Recipe, lies: tuple[tuple[str, Any], ...]) -> Any:
    """Compiled for arrays `[..., n]` of float32, bfloat16 or float16: (QTensor, whether the op would raise).

    Args:
        recipe: one that `quantize_dequantize` does not decline.
        lies: component → the sharding that it is to have.
    """

    def encode(x: Any) -> tuple[QTensor, Any]:
        values = widened(x)
        found = coded(values, scheme, recipe)
        return _stored(found), _refused(values, found, recipe)

    placed = QTensor(scheme=scheme, **dict(lies))
    return jax.jit(encode, out_shardings=(placed, None))


def pack(codes: Any, bits: int) -> Any:
    """uint8 `[..., n · bits / 8]` of uint8 `codes` `[..., n]`: see `plugins.kernels.codecs.bits`."""
    if bits == 8:
        return codes
    nbytes = 1 if 8 % bits == 0 else 3
    *lead, n = codes.shape
    many = nbytes * 8 // bits
    groups = codes.reshape(*lead, n // many, many).astype(jnp.uint8 if nbytes == 1 else jnp.uint32)
    word = groups[..., 0]
    for k in range(1, many):
        word |= groups[..., k] << word.dtype.type(k * bits)
    if nbytes == 1:
        return word
    octets = jnp.stack([(word >> np.uint32(8 * k)).astype(jnp.uint8) for k in range(nbytes)], axis=-1)
    return octets.reshape(*lead, n * bits // 8)


def _stored(found: Coded) -> QTensor:
    """As files have it: a block that has no values has the NaN that NumPy has."""
    shared, scheme = found.shared, found.shared.scheme
    scales, zeros = shared.scales, shared.zeros
    if scheme.scale != "e8m0":
        nan = jnp.asarray(np.asarray(np.nan, np.float32).astype(numpy_dtype(scheme.dtypes["scales"])))
        scales = jnp.where(found.broken, nan, scales)
    if zeros is not None:
        zeros = jnp.where(found.broken, jnp.zeros_like(zeros), zeros)
    return QTensor(pack(found.codes, scheme.element_bits), scales, scheme, zeros=zeros, second=shared.second)


def _refused(x: Any, found: Coded, recipe: Recipe) -> Any:
    """Whether some value has no code, a scale or a minimum no number, or a code no value."""
    shared = found.shared
    if recipe.nonfinite == "error":
        refused = found.broken.any()
    else:  # scales of what is not finite are NaN, and those past their encoding infinite
        refused = jnp.isinf(shared.scales).any() if shared.scheme.scale != "e8m0" else jnp.asarray(False)
        if shared.scheme.zero == "min_f16":
            refused |= jnp.isinf(shared.zeros).any()
    if recipe.overflow == "error":
        y = scaled(found.codes, shared)
        past = jnp.abs(y) >= PAST_BF16
        if shared.second is not None:
            past |= jnp.isnan(y)
        refused |= (past & jnp.isfinite(x)).any()
    return refused

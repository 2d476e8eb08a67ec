"""quantize as a Pallas kernel, for the MX formats: a block's largest value, its scale and its codes in one pass.

What a block's values have in common and what becomes of each is computed as XLA computes it (`xla/traced.py` and
`xla/codes.py`, in 32-bit integers), in registers: values are read once, and bytes of codes and scales written.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pipeline.errors import ValueRangeError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs.blocks import floats
from plugins.kernels.codecs.mx import E8M0_NAN
from plugins.kernels.pallas.groups import Groups
from plugins.kernels.pallas.launch import Device, everywhere
from plugins.kernels.pieces import quantized
from plugins.kernels.quantize.numpy import measured
from plugins.kernels.quantize.reach import refuse_infinities
from plugins.kernels.quantize.recipe import Recipe, checked
from plugins.kernels.quantize.xla import PIECE
from plugins.kernels.quantize.xla.codes import codes_of
from plugins.kernels.quantize.xla.traced import powers


def quantize(
    x: Any, scheme: Scheme, *, measure: bool = False, observed: Any = None, rows: Any = None, place: Any = None,
    importance: None = None, **options: Any,
) -> Any:  # fmt: skip
    """See the op's docstring."""
    recipe = checked(x.shape, scheme, options)
    return quantized(
        _quantize, x, scheme, PIECE, cuts_rows=True, measure=measure, observed=None, rows=None, place=None,
        recipe=recipe,
    )  # fmt: skip


def _quantize(x: Any, scheme: Scheme, *, measure: bool, recipe: Recipe, **nothing: None) -> Any:
    x = np.ascontiguousarray(x)
    codes, scales = (np.asarray(a) for a in _encoded(x, scheme, recipe))
    q = QTensor(codes, scales, scheme)
    if recipe.nonfinite == "error" and (scales == E8M0_NAN).any():
        values = floats(x)
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueRangeError(f"flat index {at}: {values.flat[at]} has no {scheme.element.upper()} value")
    if recipe.overflow == "error":
        refuse_infinities(x, q)
    return (q, measured(x, q)) if measure else q


def encoded(x: Any, scheme: Scheme, recipe: Recipe) -> tuple[Any, Any]:
    """Codes and scales as a QTensor has them, of an array `[..., n]` on a device, inside compiled programs too.

    What the op refuses is written: NaN for the scale of a block that holds a NaN or an infinity, with codes of 0, and
    codes that decode to infinities.

    Args:
        x: of float32, bfloat16 or float16, with elements; `declines.py` has nothing against it.
    """
    x = jnp.asarray(x)
    if x.dtype == jnp.float16:
        x = x.astype(jnp.float32)
    pattern = lax.bitcast_convert_type(x, jnp.int32 if x.dtype == jnp.float32 else jnp.int16)
    codes, scales = everywhere(_on, (scheme, recipe), pattern)
    shapes = scheme.components(x.shape)
    return codes.reshape(shapes["codes"]), scales.reshape(shapes["scales"])


_encoded = jax.jit(encoded, static_argnums=(1, 2))


def _on(how: tuple[Scheme, Recipe], device: Device, pattern: Any) -> tuple[Any, ...]:
    scheme, recipe = how
    groups = Groups.of(device, pattern.shape, scheme.element_bits, scheme.block_elems)
    up = 32 - 8 * pattern.dtype.itemsize  # a bfloat16 is the upper half of a float32

    def kernel(x: Any, codes: Any, scales: Any) -> None:
        patterns = [x[groups.at(p)].astype(jnp.int32) << up for p in range(groups.values)]
        magnitude = patterns[0] & 0x7FFFFFFF
        for more in patterns[1:]:
            magnitude = jnp.maximum(magnitude, more & 0x7FFFFFFF)
        amax = jnp.max(magnitude, axis=groups.over, keepdims=True).astype(jnp.uint32)
        share = powers((amax, amax), scheme, recipe)
        found = [codes_of(p.astype(jnp.uint32), share.by, None, None, share.broken, scheme, recipe) for p in patterns]
        for k, octets in enumerate(groups.packed([code.astype(jnp.int32) for code in found])):
            codes[groups.at(k)] = octets.astype(jnp.uint8)
        scales[...] = share.stored

    codes, scales = device.call(
        kernel, [(groups.shape(groups.nbytes), jnp.uint8), (groups.shape(0), jnp.uint8)],
        [groups.laid(pattern, groups.values)], grid=groups.grid, in_specs=[groups.spec(groups.values)],
        out_specs=[groups.spec(groups.nbytes), groups.spec(0)],
    )  # fmt: skip
    return groups.flat(codes, (-1,)), groups.flat(scales, (-1,))

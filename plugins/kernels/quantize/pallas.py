"""quantize as a Pallas kernel, for the MX formats and NVFP4: a block's largest value, its scale and codes in one pass.

What a block's values have in common and what becomes of each is computed as XLA computes it (`xla/traced.py` and
`xla/codes.py`, in 32-bit integers), in registers: values are read once, and bytes of codes and scales written. A scale
over the scales of a matrix wants its largest value first, which XLA finds.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pipeline.errors import ValueRangeError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs.blocks import floats
from plugins.kernels.codecs.jax_float import bits_of, widened
from plugins.kernels.codecs.mx import E8M0_NAN
from plugins.kernels.codecs.scales import matrix_scale
from plugins.kernels.pallas.groups import Groups
from plugins.kernels.pallas.launch import Device, everywhere
from plugins.kernels.pieces import quantized
from plugins.kernels.quantize.numpy import finished
from plugins.kernels.quantize.recipe import Recipe, checked
from plugins.kernels.quantize.xla import PIECE
from plugins.kernels.quantize.xla.codes import INFINITY, NAN, SIGN, codes_of, ends_of
from plugins.kernels.quantize.xla.traced import Share, second_scale, shared_by


def quantize(
    x: Any, scheme: Scheme, *, measure: bool = False, observed: Any = None, rows: Any = None, place: Any = None,
    importance: None = None, **options: Any,
) -> Any:  # fmt: skip
    """See the op's docstring."""
    recipe = checked(x.shape, scheme, options)
    return quantized(
        _quantize, x, scheme, PIECE, cuts_rows=True, measure=measure, observed=observed, rows=None, place=None,
        recipe=recipe,
    )  # fmt: skip


def _quantize(x: Any, scheme: Scheme, *, measure: bool, observed: Any, recipe: Recipe, **nothing: None) -> Any:
    x = np.ascontiguousarray(x)
    second = None
    if scheme.second is not None and observed is not None:
        largest = np.maximum(*(np.abs(np.asarray(v, np.float32)) for v in (observed.low, observed.high)))
        second = matrix_scale(largest.reshape(-1), scheme).reshape(scheme.components(x.shape)["second"])
    q = QTensor(scheme=scheme, **{name: np.asarray(a) for name, a in _encoded(x, second, scheme, recipe).items()})
    if recipe.nonfinite == "error" and np.isnan(_comparable(q.scales)).any():
        values = floats(x)
        bad = np.flatnonzero(~np.isfinite(values))
        if not bad.size:
            raise ValueRangeError("another part of this matrix holds a value that is not finite")
        raise ValueRangeError(
            f"flat index {bad[0]}: {values.flat[bad[0]]} has no {scheme.element.upper()} value"
        )  # fmt: skip
    return finished(x, q, recipe, measure=measure)


def _comparable(scales: Any) -> Any:
    """float32 of which those are NaN that are."""
    return (
        np.where(scales == E8M0_NAN, np.float32(np.nan), 0) if scales.dtype == np.uint8 else scales.astype(np.float32)
    )


def encoded(x: Any, scheme: Scheme, recipe: Recipe, second: Any = None) -> QTensor:
    """The QTensor of an array `[..., n]` on a device, inside compiled programs too.

    What the op refuses is written: NaN for the scale of a block that holds a NaN or an infinity, or of all blocks of
    such a matrix under a second-level scale, and codes that decode to infinities.

    Args:
        x: of float32, bfloat16 or float16, with elements; `declines.py` has nothing against it.
        second: a QTensor's, where `x` is a part of larger matrices; None: that of `x`.
    """
    return QTensor(scheme=scheme, **_encode(jnp.asarray(x), second, scheme, recipe))


def _encode(x: Any, second: Any, scheme: Scheme, recipe: Recipe) -> dict[str, Any]:
    x = jnp.asarray(x)
    shapes = scheme.components(x.shape)
    second = second_of(x, scheme) if second is None else jnp.asarray(second)
    codes, scales = everywhere(_on, (scheme, recipe), patterns(x), *of_blocks(second, shapes["scales"]))
    if scheme.scale == "e4m3":
        scales = lax.bitcast_convert_type(scales, jnp.float8_e4m3fn)
    found = {"codes": codes.reshape(shapes["codes"]), "scales": scales.reshape(shapes["scales"])}
    return found if second is None else {**found, "second": second}


def patterns(x: Any) -> Any:
    """The bits of floats as kernels take them: int16 of bfloat16, int32 of others as float32."""
    if x.dtype == jnp.bfloat16:
        return lax.bitcast_convert_type(x, jnp.int16)
    return lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)


def second_of(x: Any, scheme: Scheme) -> Any:
    """The second-level scale of a QTensor of `x`; None where the scheme has none."""
    if scheme.second is None:
        return None
    matrices = bits_of(widened(x)).reshape(math.prod(x.shape[:-2]), 1, 1, -1)
    return second_scale(ends_of(matrices, "amax"), scheme).reshape(scheme.components(x.shape)["second"])


def of_blocks(second: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """For each block that of its matrix, if there is one; `shape` is that of scales."""
    if second is None:
        return ()
    each = jnp.broadcast_to(second.reshape(second.size, 1), (second.size, math.prod(shape) // second.size))
    return (each.reshape(-1),)


_encoded = jax.jit(_encode, static_argnums=(2, 3))


def _on(how: tuple[Scheme, Recipe], device: Device, pattern: Any, *second: Any) -> tuple[Any, ...]:
    scheme, recipe = how
    groups = Groups.of(device, pattern.shape, scheme.element_bits, scheme.block_elems)

    def kernel(x: Any, *refs: Any) -> None:
        *over, codes, scales = refs
        found, share = coded(groups, x, over, scheme, recipe)
        groups.write(codes, groups.packed(found))
        scales[...] = share.stored

    codes, scales = device.call(
        kernel, [(groups.shape(groups.nbytes), jnp.uint8), (groups.shape(0), jnp.uint8)],
        [groups.laid(pattern, groups.values), *(groups.laid(a, 0) for a in second)], grid=groups.grid,
        in_specs=[groups.spec(groups.values), *(groups.spec(0) for _ in second)],
        out_specs=[groups.spec(groups.nbytes), groups.spec(0)],
    )  # fmt: skip
    return groups.flat(codes, (-1,)), groups.flat(scales, (-1,))


def coded(groups: Groups, x: Any, over: list[Any], scheme: Scheme, recipe: Recipe) -> tuple[list[Any], Share]:
    """Inside a kernel: int32 planes of codes of a block of `patterns`, and what its blocks share.

    Args:
        over: the references to second-level scales, if there are some.
    """
    up = 32 - 8 * x.dtype.itemsize  # a bfloat16 is the upper half of a float32
    planes = [plane.astype(jnp.int32) << up for plane in groups.read(x, groups.values)]
    magnitude = planes[0] & 0x7FFFFFFF
    for more in planes[1:]:
        magnitude = jnp.maximum(magnitude, more & 0x7FFFFFFF)
    most = jnp.max(magnitude, axis=groups.over, keepdims=True)
    amax = jnp.where(most >= INFINITY, NAN, most).astype(jnp.uint32)
    share = shared_by((amax | SIGN, amax), scheme, recipe, *(ref[...] for ref in over))
    found = [codes_of(p.astype(jnp.uint32), share.by, None, None, share.broken, scheme, recipe) for p in planes]
    return [code.astype(jnp.int32) for code in found], share

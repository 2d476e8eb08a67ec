"""quantize with XLA: extremes and codes on the device, scales, of which there are few, by NumPy between the two.

XLA flushes subnormal floats on some devices, CPUs among them, fuses products into sums, and need not divide exactly. A
float32 is a sign, a 24-bit significand and an exponent; here they are integers: extremes are those of patterns,
quotients come from `jax_float`, dividing by a power of two subtracts exponents, and rounding is a shift that looks at
what it drops. So bytes do not depend on how a device treats floats.

What it leaves to others (`declines.py`): search=mse, whose sums of errors are defined by an order that devices do not
keep; stochastic rounding, whose random numbers come from 64-bit integers that JAX lacks by default; empty arrays.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.errors import ValueRangeError
from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs import bits, scales
from plugins.kernels.codecs.blocks import floats
from plugins.kernels.pieces import quantized
from plugins.kernels.quantize.numpy import empty, finished, refuse_unstorable
from plugins.kernels.quantize.numpy.scale import Found, block_scales
from plugins.kernels.quantize.recipe import Recipe, checked
from plugins.kernels.quantize.xla.codes import codes_of, ends_of, shifts

PIECE = 1 << 18  # elements: some forty bytes for each are a task's scratch


def quantize(
    x: Any, scheme: Scheme, *, measure: bool = False, observed: Any = None, rows: Any = None, place: Any = None,
    importance: None = None, **options: Any,
) -> Any:  # fmt: skip
    """See the op's docstring."""
    recipe = checked(x.shape, scheme, options)
    return quantized(
        _quantize, x, scheme, PIECE, cuts_rows=recipe.cuts_rows(scheme), measure=measure, observed=observed, rows=rows,
        place=None, recipe=recipe,
    )  # fmt: skip


def _quantize(x: Any, scheme: Scheme, *, measure: bool, observed: Any, rows: Any, place: Any, recipe: Recipe) -> Any:
    values = floats(np.asarray(x))
    if recipe.nonfinite == "error" and not np.isfinite(_most(values.view(np.uint32))):
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueRangeError(f"flat index {at}: {values.flat[at]} has no {scheme.element.upper()} value")
    q = empty(x.shape, scheme)
    bands_of = rows
    rows, n = (x.shape[-2] if x.ndim > 1 else 1), x.shape[-1]
    matrices = values.view(np.uint32).reshape(-1, rows, n)
    whole = _whole(matrices, scheme, observed)
    second = None
    if scheme.second in ("f32", "inverse_f32"):
        assert whole is not None
        largest = np.maximum(*map(np.abs, whole))
        if not np.isfinite(largest).all():
            raise ValueRangeError("another part of this matrix holds a value that is not finite")
        second = scales.matrix_scale(largest, scheme)
        q.second[...] = second.reshape(q.second.shape)
    codes, height = np.empty(matrices.shape, np.uint8), scheme.block_rows or rows
    down, across = scheme.blocks(rows, n)
    scale = q.scales.reshape(-1, down, across)
    zeros = None if q.zeros is None else q.zeros.reshape(scale.shape)
    full = rows // height * height
    for top, bottom in ((0, full), (full, rows)):  # the last band may be lower than a block
        if top == bottom:
            continue
        r = min(height, bottom - top)
        band = matrices[:, top:bottom].reshape(-1, r, across, n // across)
        bands = slice(top // height, -(-bottom // height))
        count = len(band) // len(matrices)
        ends = whole if bands_of is None else _of_rows(bands_of, len(matrices), bands)
        found, coded = _band(band, ends, second, count, scheme, recipe, given=bands_of is not None)
        codes[:, top:bottom] = coded.reshape(len(matrices), bottom - top, n)
        scale[:, bands] = found.stored.reshape(len(matrices), count, across)
        if zeros is not None:
            zeros[:, bands] = found.zeros.reshape(len(matrices), count, across)
    q.codes[...] = bits.pack(codes.reshape(x.shape), scheme.element_bits)
    return finished(x, q, recipe, measure=measure)


def _most(patterns: Any) -> Any:
    """The largest magnitude, NaN above all."""
    return np.asarray(_largest(patterns)).view(np.float32)


@jax.jit
def _largest(patterns: Any) -> Any:
    return (patterns & jnp.uint32(0x7FFFFFFF)).max()


def _whole(matrices: Any, scheme: Scheme, observed: Any) -> Any:
    """(low, high) float32 `[matrices]`, or None where no scale needs them."""
    if observed is not None:
        return tuple(np.asarray(v, np.float32).reshape(-1) for v in (observed.low, observed.high))
    if scheme.second in ("f32", "inverse_f32") or (scheme.block_rows, scheme.block_elems) == (0, 0):
        ends = ends_of(matrices.reshape(len(matrices), 1, 1, -1), "minmax")
        return tuple(np.asarray(v).view(np.float32).reshape(-1) for v in ends)
    return None


def _of_rows(rows: Any, matrices: int, bands: slice) -> tuple[Any, ...]:
    """(low, high) float32 of some bands of every matrix."""
    return tuple(np.asarray(v, np.float32).reshape(matrices, -1)[:, bands] for v in (rows.low, rows.high))


def _band(
    band: Any, whole: Any, second: Any, count: int, scheme: Scheme, recipe: Recipe, *, given: bool
) -> tuple[Found, Any]:
    """(scales, uint8 codes) of `count` bands of blocks of every matrix, `[matrices · count, r, across, e]`.

    Args:
        whole: extremes of the matrices, or (`given`) of the rows that these bands are a part of.
    """
    if given or (scheme.block_rows == 0 and scheme.block_elems == 0):
        ends = tuple(v.reshape(-1, 1, 1, 1) for v in whole)
    else:
        rule = "first" if scheme.zero == "min_f16" else recipe.scale_rule
        ends = tuple(np.asarray(v).view(np.float32) for v in ends_of(band, rule))
    shared = None if second is None else np.repeat(second, count).reshape(-1, 1, 1, 1)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        found = block_scales(None, ends, scheme, recipe, shared)
    refuse_unstorable(found, np.maximum(np.abs(ends[0]), np.abs(ends[1])), scheme)
    by = np.frexp(found.divisor)[1] - 1 if shifts(scheme, recipe) else found.divisor
    poisoned = np.zeros(found.total.shape, bool) if found.poisoned is None else found.poisoned
    zeros = None if scheme.zero != "int" else found.zeros.astype(np.float32)
    return found, np.asarray(codes_of(band, by, found.minimum, zeros, poisoned, scheme, recipe))

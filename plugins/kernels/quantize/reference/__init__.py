"""quantize, the definition: one block at a time, one value at a time. Slow, and meant to be read.

Values of bfloat16, float16 and float32 are all float32 values. Under an E8M0 scale they are divided exactly (Python
floats are doubles, and the divisor is a power of two within 2^±127); under any other scale they are divided or
multiplied in float32, one rounding an operation, which is what the libraries that write such files do. What follows is
compared with the exact midpoints between neighbouring elements.
"""

import math
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, ValueRangeError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import numpy_dtype
from pipeline.tensors.stats import ErrorStats
from plugins.kernels.codecs import dynamic8, scales, uniform
from plugins.kernels.codecs.elements import element
from plugins.kernels.codecs.mx import E8M0_NAN
from plugins.kernels.dequantize.reference import dequantize
from plugins.kernels.pieces import quantized
from plugins.kernels.quantize import structs
from plugins.kernels.quantize.reach import may_overflow, refuse
from plugins.kernels.quantize.recipe import Recipe, checked, weighed
from plugins.kernels.quantize.reference.block import code_of, shared_of

F32: Any = np.float32
PIECE = 1 << 14  # elements: numbers of Python's, some 150 bytes for each


def quantize(
    x: Any, scheme: Scheme, *, measure: bool = False, observed: Any = None, rows: Any = None, place: Any = None,
    importance: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """See the op's docstring."""
    recipe = checked(x.shape, scheme, options)
    if scheme.is_struct:  # how they are found is defined there
        return structs.quantize(x, scheme, measure=measure, importance=importance)
    weighed(x.shape, importance, recipe)
    if recipe.stochastic and place is None:
        raise ConfigError("stochastic rounding needs to know the place of `x` in its tensor")
    return quantized(
        _quantize, x, scheme, PIECE, cuts_rows=recipe.cuts_rows(scheme), measure=measure, observed=observed, rows=rows,
        place=place, importance=importance, recipe=recipe,
    )  # fmt: skip


def _quantize(  # noqa: C901  the definition, in one piece
    x: Any,
    scheme: Scheme,
    *,
    measure: bool,
    observed: Any,
    rows: Any,
    place: Any,
    recipe: Recipe,
    importance: Any = None,
) -> Any:
    e = element(scheme.element)
    with np.errstate(invalid="ignore"):  # a signalling NaN is a value like any other here
        values = np.ascontiguousarray(x).astype(np.float32)
    if recipe.nonfinite == "error":
        for first in np.flatnonzero(~np.isfinite(values)):
            raise ValueRangeError(f"flat index {first}: {values.flat[first]} has no {e.name.upper()} value")
    *lead, n = x.shape
    bands = rows
    rows = lead[-1] if lead else 1
    matrices = values.reshape(-1, rows, n) if values.size else np.zeros((math.prod(lead[:-1]), rows, n), np.float32)
    places = _places(x.shape, place).reshape(matrices.shape) if recipe.stochastic else None
    down, across = scheme.blocks(rows, n)
    height, width = scheme.block_rows or rows, scheme.block_elems or n
    codes = np.zeros(matrices.shape, np.uint8)
    scale, zero, seconds, poisoned = [], [], [], np.zeros(matrices.shape, bool)
    for m, matrix in enumerate(matrices):
        low, high = _observed(matrix, observed, m)
        second = _second(low, high, scheme)
        seconds.append(second)
        for i in range(down):
            for j in range(across):
                at = (slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width))
                block = matrix[at].ravel().tolist()
                if scheme.block_rows == scheme.block_elems == 0:
                    ends = low, high
                elif bands is not None:  # the row goes on beyond `x`
                    ends = _observed(matrix, bands, m * down + i)
                else:
                    ends = _least(block), _most(block)
                weights = None
                if importance is not None:
                    columns = np.asarray(importance, np.float32).reshape(-1, n)[m, at[1]]
                    weights = np.broadcast_to(columns, matrix[at].shape).ravel().tolist()
                with np.errstate(all="ignore"):
                    shared = shared_of(block, ends, scheme, recipe, second, weights)
                if shared is None:
                    scale.append(E8M0_NAN if scheme.scale == "e8m0" else math.nan)
                    zero.append(0)
                    poisoned[m][at] = True
                    continue
                random = None
                if places is not None:
                    key = uniform.key(recipe.seed, place[0])
                    random = [uniform.at(int(k), key) for k in places[m][at].ravel()]
                with np.errstate(all="ignore"):
                    found = [
                        code_of(v, shared, scheme, recipe, random[k] if random else None) for k, v in enumerate(block)
                    ]
                codes[m][at] = np.array(found, np.uint8).reshape(matrix[at].shape)
                scale.append(shared.scale)
                zero.append(shared.zero)
    shapes, dtypes = scheme.components(x.shape), scheme.dtypes
    parts: dict[str, Any] = {"codes": _pack(codes.reshape(math.prod(lead), n), e.bits).reshape(shapes["codes"])}
    second_values: Any = None
    if scheme.second == "dynamic8":
        parts["scales"], second_values = dynamic8.encode(np.array(scale, np.float32).reshape(shapes["scales"]))
    else:
        parts["scales"] = np.array(scale, np.float32 if scheme.scale != "e8m0" else np.uint8).astype(
            numpy_dtype(dtypes["scales"])
        )
        if scheme.second is not None:
            second_values = np.array(seconds, np.float32)
    parts["scales"] = parts["scales"].reshape(shapes["scales"])
    if scheme.zero is not None:
        parts["zeros"] = np.array(zero).astype(numpy_dtype(dtypes["zeros"])).reshape(shapes["zeros"])
    if second_values is not None:
        parts["second"] = second_values.reshape(shapes["second"])
    q = QTensor(scheme=scheme, **parts)
    if not measure and not may_overflow(q):
        return q
    decoded = dequantize(q, "F32")
    if recipe.overflow == "error":
        refuse(values, decoded, q)
    if not measure:
        return q
    finite = ~poisoned.reshape(x.shape)
    return q, ErrorStats.between(values[finite], decoded[finite])


def _pack(codes: Any, bits: int) -> Any:
    """Rows of codes as rows of a little-endian bit stream."""
    stream = (codes[..., None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(stream.reshape(len(codes), codes.shape[-1] * bits), axis=-1, bitorder="little")


def _least(block: list[float]) -> float:
    return math.nan if any(map(math.isnan, block)) else min(block, default=0.0)


def _most(block: list[float]) -> float:
    return math.nan if any(map(math.isnan, block)) else max(block, default=0.0)


def _observed(matrix: Any, observed: Any, m: int) -> tuple[float, float]:
    """(low, high) of the matrix that `matrix` is a part of."""
    if observed is not None:
        return float(np.asarray(observed.low).reshape(-1)[m]), float(np.asarray(observed.high).reshape(-1)[m])
    return (float(matrix.min()), float(matrix.max())) if matrix.size else (0.0, 0.0)


def _second(low: float, high: float, scheme: Scheme) -> Any:
    if scheme.second not in ("f32", "inverse_f32"):
        return None
    amax, top = F32(max(abs(low), abs(high))), F32(scales.SCALE_MAX[scheme.scale] * element(scheme.element).max)
    with np.errstate(all="ignore"):
        found = top / amax if scheme.second == "inverse_f32" else amax / top
    return F32(1) if found == 0 or np.isinf(found) else found


def _places(shape: tuple[int, ...], place: Any) -> Any:
    """Flat index in the whole tensor of every value of `x`."""
    _, whole, starts = place
    return np.ravel_multi_index(np.indices(shape) + np.reshape(starts, (-1, *(1,) * len(shape))), whole)

"""quantize in C++: strip by strip in cache, whatever the format, the sums of errors in the same pass.

Schemes and recipes become numbers here (`described`), and src/quantize_block.h knows nothing else of them. The library
reads any layout where it lies; rows that are neighbours in memory go 32 at a time. It takes no memory but its result
and, for scales that whole rows or a whole matrix share, reads them twice. Scales that are themselves quantized
(dynamic8) are so at the end, in NumPy: there is one for many elements, but errors are known only then.
"""

import ctypes
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np

from pipeline.errors import ValueRangeError
from pipeline.tensors.blocks import empty
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import dtype_name, numpy_dtype
from pipeline.tensors.stats import ErrorStats
from plugins.kernels.codecs import dynamic8, scales
from plugins.kernels.codecs.blocks import as_matrices
from plugins.kernels.codecs.elements import FLOATS as SMALL_FLOATS
from plugins.kernels.codecs.elements import element
from plugins.kernels.codecs.rounding import boundaries
from plugins.kernels.native import library
from plugins.kernels.native.scheme import SCALES, SECONDS, ZEROS
from plugins.kernels.quantize import native_structs, structs
from plugins.kernels.quantize.declines import FLOATS
from plugins.kernels.quantize.numpy import measured
from plugins.kernels.quantize.reach import reaches, refuse_infinities, unstorable
from plugins.kernels.quantize.recipe import Recipe, Search, checked, weighed

# In the order of src/quantize.h.
_TIES: Final = ("even", "zero", "away", "down", "up")
_SIGNS: Final = ("signed", "positive", "minus")
_FAMILIES: Final = {"float": 0, "fixed": 1, "unsigned": 1, "table": 2}
_NOT_FINITE, _PAST = 1, {2: "scales", 3: "zeros"}
SHARES: Final = 5
"""What blocks share: divisor, total, point, minimum, stored minimum."""

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


class _Call(ctypes.Structure):
    """`struct QuantizeCall`."""

    _fields_ = [
        ("x", _POINTER),
        *((n, _LONG) for n in ("rows", "n", "row_stride", "col_stride", "block_rows", "block_elems")),
        *((n, _POINTER) for n in ("low", "high", "codes")),
        ("codes_stride", _LONG),
        *((n, _POINTER) for n in ("scales", "zeros", "stats", "edges", "values", "tried", "importance")),
        ("shares", _POINTER),
        ("options", _INT),
        *((n, _INT) for n in ("dtype", "family", "bits", "mantissa", "bias", "least", "most", "scale", "zero")),
        *((n, _INT) for n in ("second", "ends", "carry", "emax", "tiny", "ties", "sign", "reciprocal", "unrounded")),
        *((n, _INT) for n in ("poison", "middle")),
        *((n, _FLOAT) for n in ("largest", "unit", "span", "least_scale", "zero_scale", "second_value")),
        ("reach", _INT),
        ("refused", _FLOAT),
    ]  # fmt: skip


def quantize(
    x: Any, scheme: Scheme, *, measure: bool = False, observed: Any = None, rows: Any = None, place: Any = None,
    importance: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """See the op's docstring."""
    recipe = checked(x.shape, scheme, options)
    if scheme.is_struct:
        return structs.quantize(x, scheme, measure=measure, importance=importance, encode=native_structs.encode)
    weighed(x.shape, importance, recipe)
    if not x.flags.aligned or any(s % x.itemsize for s in x.strides) or not x.dtype.isnative:
        x = np.array(x, x.dtype.newbyteorder("="), order="C")  # a copy: what is contiguous may be misaligned
    twice = scheme.second == "dynamic8"
    here = replace(scheme, scale="f32", second=None) if twice else scheme
    q, call, stats = empty(x.shape, here), described(here, recipe), np.zeros(4)
    call.dtype, call.stats = FLOATS.index(dtype_name(x.dtype)), stats.ctypes.data if measure and not twice else None
    before = 0
    for lead, matrix in as_matrices(x):
        if importance is not None:
            weights = np.ascontiguousarray(importance[lead if x.ndim > 1 else ()], np.float64)
            call.importance = weights.ctypes.data
        if matrix.size:
            _matrix(call, q, lead if x.ndim > 1 else (), matrix, (observed, rows), before)
        before += matrix.size
    if twice:
        return _scales_coded(x, q, scheme, measure, recipe)
    if recipe.overflow == "error" and reaches(np.int32(call.reach).view(np.float32), scheme):
        refuse_infinities(x, q)
    return (q, ErrorStats(int(stats[0]), *map(float, stats[1:]))) if measure else q


def _scales_coded(x: Any, q: QTensor, scheme: Scheme, measure: bool, recipe: Recipe) -> Any:
    """The result with its scales coded across the whole tensor; what values are is known then, and not before."""
    stored, second = dynamic8.encode(q.scales)
    q = QTensor(q.codes, stored, scheme, second=second)
    if recipe.overflow == "error":
        refuse_infinities(x, q)
    return (q, measured(x, q)) if measure else q


def _matrix(call: _Call, q: QTensor, at: Any, matrix: Any, given: tuple[Any, Any], before: int) -> None:
    """Encode one matrix into its place in `q`.

    Args:
        given: Extremes of the whole matrices, and of the whole rows, that the tensor is a part of, or None.
        before: values of the tensor that come before this matrix, for errors.
    """
    scheme, (down, n) = q.scheme, matrix.shape
    call.x, call.rows, call.n = matrix.ctypes.data, down, n
    call.row_stride, call.col_stride = (s // matrix.itemsize for s in matrix.strides)
    call.block_rows, call.block_elems = scheme.block_rows or down, scheme.block_elems or n
    codes, scale = q.codes[at], q.scales[at]
    call.codes, call.codes_stride, call.scales = codes.ctypes.data, codes.shape[-1], scale.ctypes.data
    zeros = None if q.zeros is None else q.zeros[at]
    call.zeros = None if zeros is None else zeros.ctypes.data
    isa = library.isa()
    lib = _codec(isa)
    ends = _ends(given[0] if scheme.block_rows == 0 or scheme.second else given[1], at)
    if scheme.second is not None:
        if ends is None:
            ends = np.empty((2, 1), np.float32)
            lib.wm_extremes(isa, call, ends[0].ctypes.data, ends[1].ctypes.data)
        if not np.isfinite(ends).all():
            _refuse_not_finite(call, matrix, scheme, before)
        second = scales.matrix_scale(np.abs(ends).max(axis=0), scheme)
        q.second[at] = second.reshape(q.second[at].shape)
        call.second_value = second.item()
    shared = ends is not None and (scheme.second is None or scheme.block_rows == scheme.block_elems == 0)
    call.low, call.high = (e.ctypes.data for e in ends) if shared else (None, None)
    found = lib.wm_quantize(isa, call)
    if found == _NOT_FINITE or (found and not call.poison and lib.wm_first_not_finite(call) >= 0):
        _refuse_not_finite(call, matrix, scheme, before)
    if found and call.col_stride != 1:  # and not row by row: which is the first?
        _matrix(call, q, at, np.array(matrix, order="C"), given, before)
    if found:
        raise unstorable(np.float32(call.refused), _PAST[found], scheme)


def _ends(extremes: Any, at: Any) -> Any:
    """float32 `[2, bands]`, low and high, of one matrix of a box."""
    if extremes is None:
        return None
    return np.stack([np.asarray(v, np.float32)[at].reshape(-1) for v in (extremes.low, extremes.high)])


def _refuse_not_finite(call: _Call, matrix: Any, scheme: Scheme, before: int) -> None:
    at = codec().wm_first_not_finite(call)
    if at < 0:
        raise ValueRangeError("another part of this matrix holds a value that is not finite")
    value = np.float32(matrix[divmod(at, matrix.shape[1])])
    raise ValueRangeError(f"flat index {before + at}: {value} has no {scheme.element.upper()} value")


def shared_by_blocks(matrix: Any, scheme: Scheme, recipe: Recipe, second: Any, weights: Any) -> tuple[Any, Any, Any]:
    """What the blocks of a float32 matrix [rows, n] share, and no codes: scales and zeros as stored, [rows, blocks],
    and float32 [SHARES, blocks, rows], of which what the scheme does not have stays 0.

    Args:
        scheme: of blocks in one row.
        second: its second-level scale as stored, or None.
        weights: float64 [n], what the squares of columns' errors count in a search.

    Raises:
        ValueRangeError: a value that is not finite, a scale past its encoding.
    """
    matrix, weights = np.require(matrix, np.float32, ("C", "A")), np.ascontiguousarray(weights, np.float64)
    (rows, n), call = matrix.shape, described(scheme, recipe)
    call.x, call.rows, call.n, call.row_stride, call.col_stride = matrix.ctypes.data, rows, n, n, 1
    call.dtype, call.block_rows, call.block_elems = FLOATS.index("F32"), 1, scheme.block_elems or n
    dtypes, blocks = scheme.dtypes, n // call.block_elems
    scale = np.empty((rows, blocks), numpy_dtype(dtypes["scales"]))
    zeros = None if scheme.zero is None else np.empty((rows, blocks), numpy_dtype(dtypes["zeros"]))
    shares = np.zeros((SHARES, blocks, rows), np.float32)
    call.scales, call.zeros = scale.ctypes.data, None if zeros is None else zeros.ctypes.data
    call.shares, call.importance = shares.ctypes.data, weights.ctypes.data
    if second is not None:
        call.second_value = float(second)
    isa = library.isa()
    if (found := _codec(isa).wm_quantize(isa, call)) == _NOT_FINITE:
        _refuse_not_finite(call, matrix, scheme, 0)
    if found:
        raise unstorable(np.float32(call.refused), _PAST[found], scheme)
    return scale, zeros, shares


def described(scheme: Scheme, recipe: Recipe) -> _Call:
    """What of a call follows from scheme and recipe, to be filled in."""
    return _Call.from_buffer_copy(_described(scheme, recipe))


@lru_cache(maxsize=256)
def _described(scheme: Scheme, recipe: Recipe) -> _Call:
    e, rule, power = element(scheme.element), recipe.scale_rule, scheme.scale == "e8m0"
    mantissa, bias, _ = SMALL_FLOATS.get(e.name, (0, 0, 0))
    edges, values = _table(e.name, recipe.ties) if e.family == "table" else (None, None)
    tried = _tried(power, recipe.search, recipe.search_steps, recipe.search_grid)
    integer = e.family in ("fixed", "unsigned")
    zero_scale = 0 if power else np.float32(recipe.zero_scale).astype(numpy_dtype(scheme.dtypes["scales"]))
    return _Call(
        edges=edges if edges is None else edges.ctypes.data,
        values=values if values is None else values.ctypes.data,
        tried=tried.ctypes.data, options=len(tried),
        family=_FAMILIES[e.family], bits=e.bits, mantissa=mantissa, bias=bias,
        least=(-e.most if e.family == "fixed" and recipe.is_narrow else e.least) if integer else 0,
        most=e.most if integer else 0,
        scale=SCALES.index(scheme.scale), zero=ZEROS.index(scheme.zero), second=SECONDS.index(scheme.second),
        ends=2 if rule == "signed" else int(rule == "minmax"),
        carry=scales.carry(e.name, rule) if power else 0, emax=e.emax if power else 0,
        tiny=0 if recipe.tiny == "spec" else 127 if rule == "rceil" else 1,
        ties=_TIES.index(recipe.ties), sign=_SIGNS.index(recipe.zero), reciprocal=recipe.quotient == "reciprocal",
        unrounded=recipe.codes_from == "unrounded", poison=recipe.nonfinite == "poison",
        middle=recipe.zero_block == "middle",
        largest=e.max, unit=e.unit, span=1 if power else scales.span(e, rule),
        least_scale=recipe.least_scale, zero_scale=float(zero_scale),
    )  # fmt: skip


@cache
def _tried(power: bool, search: Search, steps: int, grid: tuple[float, ...]) -> Any:
    """float32: what a search tries, as src/quantize.h says; nothing where there is none."""
    if search == "none":
        return np.empty(0, np.float32)
    if not power:
        return np.array([1, *grid], np.float32)
    return np.array([0, *(s for k in range(1, steps + 1) for s in (-k, k))], np.float32)


@cache
def _table(name: str, ties: Any) -> tuple[Any, Any]:
    """float32 `[16]` each: what a value must be larger than for the next code (the last never is), and the values."""
    edges = np.full(16, np.inf, np.float32)
    for k, (passes, edge) in enumerate(boundaries(element(name), ties)):
        edges[k] = np.nextafter(edge, np.float32(-2)) if passes is np.greater_equal else edge
    return edges, np.ascontiguousarray(element(name).values)


def codec() -> Any:
    """src/quantize.cc for the instruction set that runs, loaded. Raises as `build.library`."""
    return _codec(library.isa())


@cache
def _codec(isa: int) -> Any:
    found = library.load("quantize", isa)
    found.wm_quantize.argtypes = (ctypes.c_int, ctypes.POINTER(_Call))
    found.wm_extremes.argtypes = (ctypes.c_int, ctypes.POINTER(_Call), _POINTER, _POINTER)
    found.wm_columns.argtypes = (ctypes.c_int, ctypes.POINTER(_Call), _POINTER)
    found.wm_block_errors.argtypes = (ctypes.c_int, ctypes.POINTER(_Call), _POINTER)
    found.wm_extremes.restype = found.wm_columns.restype = found.wm_block_errors.restype = None
    found.wm_first_not_finite.argtypes, found.wm_first_not_finite.restype = (ctypes.POINTER(_Call),), _LONG
    return found

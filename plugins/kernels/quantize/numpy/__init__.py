"""quantize for every scheme in NumPy, tile by tile; MXFP4 as most people mean it goes to the faster `mxfp4`.

A tile becomes float32 once and everything happens on it in cache. A block larger than a tile is read twice: for its
extremes, then for its codes. Extra memory is a few MiB a thread, whatever the tensor and its layout.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, ValueRangeError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import numpy_dtype
from pipeline.tensors.stats import ErrorStats
from plugins.kernels.codecs import bits, dynamic8, scales, scratch, uniform
from plugins.kernels.codecs.blocks import (
    TILE,
    amax,
    as_matrices,
    extremes,
    floats,
    loaded,
    matrix_extremes,
    pieces,
    shape_in_blocks,
    tiles,
)
from plugins.kernels.codecs.elements import element
from plugins.kernels.codecs.rounding import encode
from plugins.kernels.quantize import mxfp4, structs
from plugins.kernels.quantize.mxfp4.errors import compared
from plugins.kernels.quantize.numpy.scale import Found, block_scales, quotients
from plugins.kernels.quantize.reach import refuse_infinities, unstorable
from plugins.kernels.quantize.recipe import Recipe, checked, is_fast, weighed


def quantize(
    x: Any, scheme: Scheme, *, measure: bool = False, observed: Any = None, rows: Any = None, place: Any = None,
    importance: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """See the op's docstring."""
    recipe = checked(x.shape, scheme, options)
    if scheme.is_struct:
        return structs.quantize(x, scheme, measure=measure, importance=importance)
    weighed(x.shape, importance, recipe)
    if is_fast(scheme, recipe):
        names = ("scale_rule", "ties", "zero", "nonfinite", "overflow", "tiny")
        return mxfp4.quantize(x, scheme, measure=measure, **{k: getattr(recipe, k) for k in names})
    q = empty(x.shape, scheme)
    coder = _Coder(scheme, recipe, x, q, observed, rows, place, importance)
    for lead, matrix in as_matrices(x):
        coder.matrix(lead, matrix)
    return finished(x, q, recipe, measure=measure)


def empty(shape: tuple[int, ...], scheme: Scheme) -> QTensor:
    """Arrays to fill; scales that will be quantized themselves are still float32."""
    dtypes = {**scheme.dtypes, **({"scales": "F32"} if scheme.second == "dynamic8" else {})}
    found: dict[str, Any] = {c: np.empty(s, numpy_dtype(dtypes[c])) for c, s in scheme.components(shape).items()}
    if scheme.second == "dynamic8":
        found["second"] = None
    return QTensor(scheme=scheme, **found)


def finished(x: Any, q: QTensor, recipe: Recipe, *, measure: bool) -> Any:
    """What the op gives of arrays that were filled (`empty`): scales that are to be quantized themselves are that now.

    Raises:
        ValueRangeError: a finite value became infinite, where the recipe has that for an error.
    """
    if q.scheme.second == "dynamic8":
        scales, second = dynamic8.encode(q.scales)
        q = QTensor(q.codes, scales, q.scheme, second=second)
    if recipe.overflow == "error":
        refuse_infinities(x, q)
    return (q, measured(x, q)) if measure else q


@dataclass(slots=True)
class _Coder:
    """One call: its options, its input and its output."""

    scheme: Scheme
    recipe: Recipe
    x: Any
    q: QTensor
    observed: Any
    bands: Any
    place: Any
    importance: Any

    def matrix(self, lead: tuple[int, ...], matrix: Any) -> None:
        scheme, q = self.scheme, self.q
        rows, n = matrix.shape
        at = lead if self.x.ndim > 1 else ()
        codes = q.codes[at].reshape(rows, q.codes.shape[-1])
        scale = q.scales[at].reshape(scheme.blocks(rows, n))
        zeros = None if q.zeros is None else q.zeros[at].reshape(scale.shape)
        whole = self._whole(lead, matrix)
        second = None
        if scheme.second in ("f32", "inverse_f32"):
            self._finite(np.maximum(*map(np.abs, whole)))
            second = scales.matrix_scale(np.maximum(*map(np.abs, whole)).astype(np.float32), scheme)
            q.second[at] = second
        tall = matrix.strides[0] < matrix.strides[1] and rows > 1
        for box in tiles(scheme, rows, n, tall):
            r, e = scheme.block_rows or rows, scheme.block_elems or n
            down = slice(box[0].start // r, -(-box[0].stop // r))
            across = slice(box[1].start // e, -(-box[1].stop // e))
            self._box(
                matrix,
                box,
                codes,
                scale[down, across],
                None if zeros is None else zeros[down, across],
                (whole if self.bands is None else self._bands(lead, down), second, lead),
            )

    def _box(self, matrix: Any, box: Any, codes: Any, scale: Any, zeros: Any, of: Any) -> None:
        """One tile: its scales, then its codes; in pieces when it is one large block."""
        whole, second, lead = of
        rows, cols = box
        size = (rows.stop - rows.start) * (cols.stop - cols.start)
        shape = shape_in_blocks(self.scheme, rows.stop - rows.start, cols.stop - cols.start)
        looks_again = self.recipe.scale_rule == "signed" or self.recipe.search != "none"
        one = size <= TILE or shape[0] * shape[2] > 1 or looks_again
        blocks = loaded(matrix[box]).reshape(shape) if one else None
        if self.scheme.block_rows == 0 and self.scheme.block_elems == 0:
            ends = tuple(np.asarray(v, np.float32).reshape(1, 1, 1, 1) for v in whole)
        elif self.bands is not None:
            ends = whole
        elif blocks is not None and self.recipe.scale_rule in ("signed", "minmax"):
            ends = extremes(blocks)
        elif blocks is not None:
            most = amax(blocks)
            ends = (-most, most)
        else:
            ends = tuple(np.asarray(v, np.float32).reshape(1, 1, 1, 1) for v in matrix_extremes(matrix[box]))
        largest = np.maximum(*map(np.abs, ends))
        if self.recipe.nonfinite == "error":
            self._finite(largest)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            found = block_scales(blocks, ends, self.scheme, self.recipe, second, self._weights(lead, cols, shape))
        refuse_unstorable(found, largest, self.scheme)
        scale[...] = found.stored[:, 0, :, 0]
        if zeros is not None:
            zeros[...] = found.zeros[:, 0, :, 0]
        for piece in (box,) if blocks is not None else pieces(rows, cols):
            part = blocks if blocks is not None else loaded(matrix[piece])[None, :, None, :]
            self._codes(part, piece, codes, found, lead)

    def _codes(self, part: Any, piece: Any, codes: Any, found: Any, lead: Any) -> None:
        e, recipe = element(self.scheme.element), self.recipe
        rows, cols = piece
        width = cols.stop - cols.start
        random = None
        if recipe.stochastic:
            random = uniform.box(*self._starts(rows, cols, lead), uniform.key(recipe.seed, self.place[0])).reshape(
                part.shape
            )
        with np.errstate(invalid="ignore", over="ignore", divide="ignore", under="ignore"):
            # Divided by a power of two nothing becomes 0, though as a float32 it may.
            zeros = part == 0 if recipe.zero == "minus" and self.scheme.scale == "e8m0" else None
            v = quotients(part, found, self.scheme, recipe)
            coded = encode(e, v, recipe.ties, recipe.zero, recipe.is_narrow, random, zeros=zeros)
        if recipe.nonfinite == "poison" and found.poisoned is not None:
            coded = np.where(found.poisoned, np.uint8(0), coded)
        nbits = e.bits
        at = slice(cols.start * nbits // 8, cols.stop * nbits // 8)
        codes[rows, at] = bits.pack(coded.reshape(-1, width), nbits)

    def _starts(self, rows: slice, cols: slice, lead: tuple[int, ...]) -> tuple[Any, int]:
        """Flat indices in the whole tensor at which the rows of a box start, and its width."""
        if self.place is None:
            raise ConfigError("stochastic rounding needs to know the place of `x` in its tensor")
        _, shape, starts = self.place
        matrix = 0
        for k, i in enumerate(lead):
            matrix = matrix * shape[k] + starts[k] + i
        first = starts[-2] if len(shape) > 1 else 0
        height = shape[-2] if len(shape) > 1 else 1
        row = matrix * height + first + np.arange(rows.start, rows.stop)
        return row * shape[-1] + starts[-1] + cols.start, cols.stop - cols.start

    def _whole(self, lead: tuple[int, ...], matrix: Any) -> Any:
        """(low, high) of the whole matrix that this one is, or is part of; None where no scale needs them."""
        if self.observed is not None:
            return tuple(np.asarray(v)[lead].reshape(()) for v in (self.observed.low, self.observed.high))
        s = self.scheme
        if s.second in ("f32", "inverse_f32") or (s.block_rows, s.block_elems) == (0, 0):
            return matrix_extremes(matrix)
        return None

    def _weights(self, lead: tuple[int, ...], cols: slice, shape: tuple[int, ...]) -> Any:
        """What the squared errors of a tile's columns are multiplied by, `[1, 1, across, e]`; None: by nothing."""
        if self.importance is None:
            return None
        row = np.asarray(self.importance, np.float64)[lead if self.x.ndim > 1 else ()]
        return row[cols].reshape(1, 1, shape[2], shape[3])

    def _bands(self, lead: tuple[int, ...], down: slice) -> Any:
        """(low, high) `[down, 1, 1, 1]` of the whole rows that these bands of a matrix are a part of."""
        ends = (np.asarray(v, np.float32)[lead] for v in (self.bands.low, self.bands.high))
        return tuple(v.reshape(-1)[down].reshape(-1, 1, 1, 1) for v in ends)

    def _finite(self, amax: Any) -> None:
        if np.isfinite(amax).all():
            return
        for i, (_, matrix) in enumerate(as_matrices(self.x)):
            for box in pieces(slice(0, matrix.shape[0]), slice(0, matrix.shape[1])):
                part = floats(matrix[box])
                bad = ~np.isfinite(part)
                if bad.any():
                    r, c = np.argwhere(bad)[0]
                    at = i * matrix.size + (box[0].start + int(r)) * matrix.shape[1] + box[1].start + int(c)
                    raise ValueRangeError(f"flat index {at}: {part[r, c]} has no {self.scheme.element.upper()} value")
        raise ValueRangeError("another part of this matrix holds a value that is not finite")


def refuse_unstorable(found: Found, amax: Any, scheme: Scheme) -> None:
    """Refuse finite blocks whose scale or minimum is past its encoding: names the first."""
    if scheme.scale == "e8m0":
        return
    scale, zero = (
        np.isfinite(amax) & ~np.isfinite(np.asarray(0 if part is None else part).astype(np.float32))
        for part in (found.stored, found.zeros)
    )
    if (scale | zero).any():
        first = int(np.argmax(scale | zero))
        raise unstorable(amax.reshape(-1)[first], "scales" if scale.reshape(-1)[first] else "zeros", scheme)


def measured(x: Any, q: QTensor) -> ErrorStats:
    """ErrorStats of `x` against the values of `q`, without blocks that have none; decoded tile by tile."""
    from plugins.kernels.dequantize.numpy import boxes

    stats = ErrorStats()
    for lead, rows, cols, y in boxes(q):
        with np.errstate(invalid="ignore"):
            part = scratch.floats(1, y.shape)
            np.copyto(part, (x[lead] if x.ndim > 1 else x[None])[rows, cols], casting="unsafe")
        stats += compared(part.reshape(-1), y.reshape(-1))
    return stats

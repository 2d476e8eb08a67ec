"""quantize in NumPy, tile by tile: the drivers for both memory layouts around the arithmetic of tile.py.

Rows whose elements are neighbours in memory, and the transposed view of a row-major matrix (how expert weights are
stored by some checkpoints), are read where they lie; any other layout is gathered a tile at a time. float32 and float16
become 16 bits rounded to odd first: every boundary the codec knows is an even bfloat16 pattern, so no comparison can
tell. Extra memory is at most 12 MiB a thread (6 for bfloat16 rows, not measured), whatever the tensor.
"""

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import ValueRangeError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import dtype_name
from plugins.kernels.codecs.mx import E8M0_NAN
from plugins.kernels.quantize import Nonfinite, ScaleRule, Ties, Tiny, Zero, check
from plugins.kernels.quantize.mxfp4 import tile
from plugins.kernels.quantize.mxfp4.errors import Measure
from plugins.kernels.quantize.reach import refuse_infinities
from plugins.kernels.quantize.recipe import Overflow
from plugins.kernels.tiles import matrices, spans

_local = threading.local()


def quantize(
    x: Any,
    scheme: Scheme,
    *,
    scale_rule: ScaleRule = "floor",
    ties: Ties = "even",
    zero: Zero = "signed",
    nonfinite: Nonfinite = "error",
    overflow: Overflow = "error",
    tiny: Tiny = "spec",
    measure: bool = False,
) -> Any:
    """See the op's docstring."""
    check(
        x.shape, scheme, scale_rule=scale_rule, ties=ties, zero=zero, nonfinite=nonfinite, overflow=overflow, tiny=tiny
    )
    most = max(tile.TILE, scheme.block_elems)
    parts = scheme.components(x.shape)
    q = QTensor(np.empty(parts["codes"], np.uint8), np.empty(parts["scales"], np.uint8), scheme)
    meter = Measure(most) if measure else None
    encoder = _Encoder(scheme.block_elems, scale_rule, ties, zero, nonfinite, tiny, _scratch(most), meter)
    for source, codes, scales in matrices(x, q.codes, q.scales):
        if not encoder.matrix(source, codes, scales, most):
            _raise_nonfinite(x)
    if overflow == "error":
        refuse_infinities(x, q)
    return (q, meter.stats) if meter is not None else q


@dataclass(frozen=True, slots=True)
class _Encoder:
    """One call's options and buffers."""

    block: int
    scale_rule: ScaleRule
    ties: Ties
    zero: Zero
    nonfinite: Nonfinite
    tiny: Tiny
    scratch: tile.Scratch
    meter: Measure | None

    def matrix(self, source: Any, codes: Any, scales: Any, most: int) -> bool:
        """Encode `[rows, n]` into its codes and scales, a box at a time. False if it holds what must not be coded."""
        block = self.block
        by_columns = _is_transposed(source) and block <= 256
        n_rows, n = source.shape
        boxes = _column_boxes(n_rows, n, block, most) if by_columns else spans(n_rows, n, block, most)
        for rows, cols in boxes:
            box = source[rows, cols].T if by_columns else source[rows, cols]
            coded = self.box(box, box.shape[1] if by_columns else 1)
            if coded is None:
                return False
            code_at = codes[rows, cols.start // 2 : cols.stop // 2]
            scale_at = scales[rows, cols.start // block : cols.stop // block]
            if by_columns:
                _pack_columns(coded[0], code_at)
                scale_at[...] = coded[1].T
            else:
                _pack_rows(coded[0], code_at, self.scratch)
                np.copyto(scale_at, coded[1].reshape(scale_at.shape))
        return True

    def box(self, box: Any, c: int) -> tuple[Any, Any] | None:
        """Codes, flat and one a byte, and scales `[k, c]` of a box; None if it holds what must not be coded."""
        s, meter = self.scratch, self.meter
        bits = _bits(box, s)
        group = (bits.size // self.block // c, self.block, c)
        magnitude = s.magnitude[: bits.size]
        np.bitwise_and(bits, 0x7FFF, out=magnitude.view(np.uint16))
        amax, scale, shifted = _scaled(magnitude.reshape(group), self.scale_rule, s)
        poisoned = amax.max(initial=0) >= tile.INFINITY
        if poisoned and self.nonfinite == "error":
            return None
        code = tile.count_thresholds(shifted, self.ties, s, None if meter is None else meter.twice[: bits.size])
        in_groups = code.reshape(group)
        mended = tile.mend(in_groups, magnitude.reshape(group), amax, scale, self.scale_rule, self.ties, self.tiny)
        if meter is not None:
            meter.add(box, magnitude, code, amax, scale, group, careful=mended)
        tile.add_signs(code, bits, self.zero, s)
        if poisoned:
            k, at = np.nonzero(scale == E8M0_NAN)
            in_groups[k, :, at] = 0
        return code, scale


def _pack_rows(code: Any, out: Any, s: tile.Scratch) -> None:
    pair = code.view(np.uint16)  # low byte: the even element
    high = s.shifted.view(np.uint16)[: pair.size]
    np.right_shift(pair, 4, out=high)
    np.bitwise_or(pair, high, out=pair)
    np.copyto(out, pair.reshape(out.shape), casting="unsafe")  # keeps the low byte


def _pack_columns(code: Any, out: Any) -> None:
    pairs = code.reshape(-1, 2, out.shape[0])
    low, high = pairs[:, 0], pairs[:, 1]
    np.multiply(high, 16, out=high)
    np.bitwise_or(low, high, out=low)
    out[...] = low.T


def _raise_nonfinite(x: Any) -> None:
    """Name the first value of `x`, in its own order, that is a NaN or an infinity."""
    first = 0
    for (source,) in matrices(x):
        for rows, cols in spans(source.shape[0], source.shape[1], 1, 1 << 16):
            box = source[rows, cols]
            bad = ~np.isfinite(box)
            if bad.any():
                r, c = np.argwhere(bad)[0]
                at = first + (rows.start + int(r)) * source.shape[1] + cols.start + int(c)
                raise ValueRangeError(f"flat index {at}: {box[r, c]} has no E2M1 value")
        first += source.size
    raise AssertionError("a tile had a value that is not finite, the tensor has none")


def _scratch(elems: int) -> tile.Scratch:
    s = getattr(_local, "scratch", None)
    if s is None or s.code.size < elems:
        s = _local.scratch = tile.Scratch(elems)
    return s


def _is_transposed(source: Any) -> bool:
    """Whether rows, not columns, are neighbours in memory, in runs long enough for SIMD."""
    return bool(source.strides[0] == source.itemsize != source.strides[1] and source.shape[0] >= 64)


def _column_boxes(rows: int, n: int, block: int, most: int) -> Any:
    """Boxes of whole blocks: narrow in n, long in rows."""
    for box_cols, box_rows in spans(n // block, rows, 1, most // block):
        yield box_rows, slice(box_cols.start * block, box_cols.stop * block)


def _bits(box: Any, s: tile.Scratch) -> Any:
    """Flat contiguous uint16 bfloat16 patterns of a box: a view if it can be."""
    if dtype_name(box.dtype) == "BF16":
        patterns = box.view(np.uint16)
        if box.flags.c_contiguous:
            return patterns.reshape(-1)
        return np.ascontiguousarray(patterns).reshape(-1)
    with np.errstate(invalid="ignore"):
        wide = np.ascontiguousarray(box).astype(np.float32, copy=False).view(np.uint32).reshape(-1)
    sticky = s.hit[: box.size]
    np.not_equal(wide.view(np.uint16)[0::2], 0, out=sticky)
    return np.bitwise_or(wide.view(np.uint16)[1::2], sticky.view(np.uint8))


def _scaled(group: Any, rule: ScaleRule, s: tile.Scratch) -> tuple[Any, Any, Any]:
    """(amax `[k, c]`, scale bytes `[k, c]`, flat patterns divided by their scales) of `[k, e, c]` magnitudes."""
    k, block, c = group.shape
    flat = group.reshape(-1)
    shifted = s.shifted[: flat.size]
    if c > 1:
        amax = np.maximum.reduce(group, axis=1)
        scale = tile.scale_bytes(amax, rule)
        np.subtract(group, tile.exponent_shift(1)[scale, 0][:, None, :], out=shifted.reshape(group.shape))
        return amax, scale, shifted
    amax = tile.block_amax(flat, shifted) if block == 32 else np.maximum.reduce(group[:, :, 0], axis=1)
    scale = tile.scale_bytes(amax, rule)
    # A row of the table is a whole block: one copy of 64 bytes each, where repeating would loop over elements.
    index = scale.astype(np.intp)
    np.take(tile.exponent_shift(block), index, axis=0, out=shifted.reshape(k, block), mode="clip")
    np.subtract(flat, shifted, out=shifted)
    return amax[:, None], scale[:, None], shifted

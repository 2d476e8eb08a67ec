"""quantize in NumPy, tile by tile: the drivers for both memory layouts around the arithmetic of tile.py.

Rows whose elements are neighbours in memory, and the transposed view of a row-major matrix (how expert weights are
stored by some checkpoints), are read where they lie; any other layout is gathered a tile at a time. float32 and float16
become 16 bits rounded to odd first: every boundary the codec knows is an even bfloat16 pattern, so no comparison can
tell. Extra memory is a thread's scratch, under 2 MiB whatever the tensor.
"""

import sys
import threading
from typing import Any

import numpy as np

from pipeline.errors import Unsupported, ValueRangeError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import dtype_name
from pipeline.tensors.stats import ErrorStats
from plugins.kernels.elements import E8M0_NAN
from plugins.kernels.quantize import Nonfinite, ScaleRule, Ties, Tiny, Zero, check, tile
from plugins.kernels.quantize.measure import Measure
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
    tiny: Tiny = "spec",
    measure: bool = False,
) -> Any:
    """See the op's docstring."""
    check(x.shape, scheme, scale_rule=scale_rule, ties=ties, zero=zero, nonfinite=nonfinite, tiny=tiny)
    if sys.byteorder != "little":
        raise Unsupported("the packing views bytes as little-endian words")
    block = scheme.block_elems
    most = max(tile.TILE, block)
    s = _scratch(most)
    meter = Measure(most) if measure else None
    parts = scheme.components(x.shape)
    q = QTensor(np.empty(parts["codes"], np.uint8), np.empty(parts["scales"], np.uint8), scheme)
    first = 0
    for source, codes, scales in matrices(x, q.codes, q.scales):
        by_columns = _is_transposed(source) and block <= 256
        boxes = _column_boxes(*source.shape, block, most) if by_columns else spans(*source.shape, block, most)
        for rows, cols in boxes:
            box = source[rows, cols]
            bits, group = _bits(box.T if by_columns else box, s), (-1, block, box.shape[0] if by_columns else 1)
            magnitude = s.magnitude[: bits.size]
            np.bitwise_and(bits, 0x7FFF, out=magnitude.view(np.uint16))
            amax, scale, shifted = _scaled(magnitude.reshape(group), scale_rule, s)
            if nonfinite == "error" and amax.max(initial=0) >= tile.INFINITY:
                r, c = np.argwhere(~np.isfinite(box.astype(np.float64)))[0]
                at = first + (rows.start + int(r)) * source.shape[1] + cols.start + int(c)
                raise ValueRangeError(f"flat index {at}: {box[r, c]} has no E2M1 value")
            code = tile.count_thresholds(shifted, ties, s)
            exact = tile.mend(code.reshape(group), magnitude.reshape(group), amax, scale, scale_rule, ties, tiny)
            if meter is not None:
                meter.add(box.T if by_columns else box, magnitude, code, scale, group, careful=exact)
            tile.add_signs(code, bits, zero, s)
            if scale.max(initial=0) == E8M0_NAN:
                k, c = np.nonzero(scale == E8M0_NAN)
                code.reshape(group)[k, :, c] = 0
            code_at = codes[rows, cols.start // 2 : cols.stop // 2]
            scale_at = scales[rows, cols.start // block : cols.stop // block]
            if by_columns:
                pairs = code.reshape(-1, 2, group[2])
                low, high = pairs[:, 0], pairs[:, 1]
                np.left_shift(high, 4, out=high)
                np.bitwise_or(low, high, out=low)
                code_at[...] = low.T
                scale_at[...] = scale.T
            else:
                pair = code.view(np.uint16)  # low byte: the even element
                high = s.bits[: pair.size]
                np.right_shift(pair, 4, out=high)
                np.bitwise_or(pair, high, out=pair)
                np.copyto(code_at, pair.reshape(code_at.shape), casting="unsafe")  # keeps the low byte
                np.copyto(scale_at, scale.reshape(scale_at.shape))
        first += source.size
    return (q, meter.stats if meter else ErrorStats()) if measure else q


def _scratch(elems: int) -> tile.Scratch:
    s = getattr(_local, "scratch", None)
    if s is None or s.code.size < elems:
        s = _local.scratch = tile.Scratch(elems)
    return s


def _is_transposed(source: Any) -> bool:
    """Whether rows, not columns, are neighbours in memory, in runs long enough for SIMD."""
    return source.strides[0] == source.itemsize != source.strides[1] and source.shape[0] >= 64


def _column_boxes(rows: int, n: int, block: int, most: int) -> Any:
    """Boxes of whole blocks: narrow in n, long in rows."""
    for box_cols, box_rows in spans(n // block, rows, 1, most // block):
        yield box_rows, slice(box_cols.start * block, box_cols.stop * block)


def _bits(box: Any, s: tile.Scratch) -> Any:
    """Flat contiguous uint16 bfloat16 patterns of a box: a view if it can be, else in `s.bits`."""
    if dtype_name(box.dtype) == "BF16":
        patterns = box.view(np.uint16)
        if box.flags.c_contiguous:
            return patterns.reshape(-1)
        bits = s.bits[: box.size]
        np.copyto(bits.reshape(box.shape), patterns)
        return bits
    with np.errstate(invalid="ignore"):
        wide = np.ascontiguousarray(box).astype(np.float32, copy=False).view(np.uint32).reshape(-1)
    bits, sticky = s.bits[: box.size], s.hit[: box.size]
    np.not_equal(wide.view(np.uint16)[0::2], 0, out=sticky)
    np.copyto(bits, wide.view(np.uint16)[1::2])
    np.bitwise_or(bits, sticky.view(np.uint8), out=bits)
    return bits


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

"""quantize on the bit patterns: bfloat16 magnitudes are ordered like integers, so codes are counts of thresholds passed.

Per tile: amax by integer maximum, the scale by an add and a shift, then seven compares. No float arithmetic. float32 and
float16 become 16 bits rounded to odd first: every boundary the codec knows is an even bfloat16 pattern, so no comparison
can tell. Extra memory is a few tiles.
"""

from functools import cache
from typing import Any

import numpy as np

from pipeline.errors import ValueRangeError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import dtype_name
from pipeline.tensors.stats import ErrorStats
from plugins.kernels.dequantize.numpy_backend import dequantize
from plugins.kernels.elements import E2M1_BOUNDARIES, E8M0_BIAS, E8M0_NAN
from plugins.kernels.quantize import Nonfinite, ScaleRule, Ties, Tiny, Zero, check
from plugins.kernels.tiles import matrices, spans

_TILE = 1 << 16  # elements
_INFINITY = 0x7F80  # bfloat16
# What, added to a magnitude, carries into the exponent exactly when the rule rounds amax up: mantissas above 1, from
# 1.75, above 1.5 (7 mantissa bits).
_CARRY = {"floor": 0x00, "ceil": 0x7F, "even": 0x20, "rceil": 0x3F}
_UP_ON_TIE = {"even": (0, 1, 0, 1, 0, 1, 0), "zero": (0,) * 7, "away": (1,) * 7}


@cache
def thresholds(ties: Ties) -> Any:
    """int16 `[256, 7]`: for each scale byte, the least bfloat16 magnitude pattern that codes past boundary k."""
    units = np.ldexp(1.0, np.arange(256) - E8M0_BIAS)[:, None]
    with np.errstate(over="ignore"):
        exact = (units * np.array(E2M1_BOUNDARIES)).astype(np.float32)  # at least 2^-129: all even bfloat16 patterns
    return (exact.view(np.uint32) >> 16).astype(np.int16) + (1 - np.array(_UP_ON_TIE[ties], np.int16))


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
    block = scheme.block_elems
    parts = scheme.components(x.shape)
    q = QTensor(np.empty(parts["codes"], np.uint8), np.empty(parts["scales"], np.uint8), scheme)
    stats = ErrorStats()
    first = 0
    for source, codes, scales in matrices(x, q.codes, q.scales):
        for rows, cols in spans(*source.shape, block, _TILE):
            tile = source[rows, cols]
            bits = _bits(tile).reshape(-1, block)
            code, scale = _encode(bits, scale_rule, ties, zero, tiny)
            bad = scale == E8M0_NAN
            if nonfinite == "error" and bad.any():
                i = int(np.flatnonzero((bits & 0x7FFF) >= _INFINITY)[0])
                r, c = divmod(i, tile.shape[1])
                at = first + (rows.start + r) * source.shape[1] + cols.start + c
                raise ValueRangeError(f"flat index {at}: {tile[r, c]} has no E2M1 value")
            code[bad] = 0
            packed = code[:, 0::2] | code[:, 1::2] << 4
            at = slice(cols.start // 2, cols.stop // 2)
            codes[rows, at] = packed.reshape(codes[rows, at].shape)
            at = slice(cols.start // block, cols.stop // block)
            scales[rows, at] = scale.reshape(scales[rows, at].shape)
            if measure:
                part = QTensor(packed[~bad], scale[~bad, None], scheme)
                with np.errstate(invalid="ignore"):
                    values = tile.astype(np.float32).reshape(-1, block)[~bad]
                stats += ErrorStats.between(values, dequantize(part, "F32"))
        first += source.size
    return (q, stats) if measure else q


def _bits(tile: Any) -> Any:
    """uint16 bfloat16 patterns of a tile, contiguous; wider formats rounded to odd."""
    if dtype_name(tile.dtype) == "BF16":
        return np.ascontiguousarray(tile).view(np.uint16)
    wide = np.ascontiguousarray(tile, np.float32).view(np.uint32)
    return ((wide >> 16) | ((wide & 0xFFFF) != 0)).astype(np.uint16)


def _encode(bits: Any, scale_rule: ScaleRule, ties: Ties, zero: Zero, tiny: Tiny) -> tuple[Any, Any]:
    """Codes uint8 `[blocks, block]` and scales uint8 `[blocks]` (0xFF for blocks that are not finite)."""
    magnitude = (bits & 0x7FFF).view(np.int16)
    amax = magnitude.max(axis=1)
    scale = np.clip(((amax + _CARRY[scale_rule]) >> 7) - 2, 0, 254).astype(np.uint8)
    scale[amax >= _INFINITY] = E8M0_NAN
    at = scale
    if tiny == "torchao":
        at = np.maximum(scale, E8M0_BIAS if scale_rule == "rceil" else 1) if not scale.all() else scale
        at = np.where(scale == 0, at, scale).astype(np.uint8)
    edges = thresholds(ties)[at]
    code = np.zeros(bits.shape, np.uint8)
    for k in range(7):
        code += magnitude >= edges[:, k : k + 1]
    negative = bits > 0x7FFF
    if zero == "positive":
        negative &= code > 0
    code |= negative.view(np.uint8) << 3
    return code, scale

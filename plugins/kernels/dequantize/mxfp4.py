"""dequantize by one exact table look-up a byte: (scale, packed pair) → both values.

65,536 entries hold every answer there is, so subnormals, -0, infinities and NaN need no special case. A tile uses a few
scales, hence a few KiB of the table. Extra memory is one tile of indices.
"""

from functools import cache
from typing import Any

import numpy as np

from pipeline import subnormals
from pipeline.errors import ValueRangeError
from pipeline.tensors.spec import numpy_dtype
from plugins.kernels.codecs.mx import E2M1_MAGNITUDES, E8M0_BIAS, E8M0_NAN
from plugins.kernels.dequantize import Overflow, check
from plugins.kernels.tiles import matrices, spans

_TILE = 1 << 19  # elements: 2 MiB of look-up indices; calls long enough for threads to run side by side
_PAIR: dict[str, Any] = {"BF16": np.dtype(np.uint32), "F16": np.dtype(np.uint32), "F32": np.dtype(np.uint64)}


@cache
@subnormals.kept()
def table(dtype: str) -> Any:
    """Both values of a packed byte under a scale: unsigned `[256 · 256]`, entry scale · 256 + byte."""
    from plugins.kernels.cast.numpy import cast

    elements = np.array([*E2M1_MAGNITUDES, *(-m for m in E2M1_MAGNITUDES)])
    scales = np.ldexp(1.0, np.arange(256) - E8M0_BIAS)
    scales[E8M0_NAN] = np.nan
    values = cast(scales[:, None] * elements, dtype, overflow="inf")
    pairs = np.empty((256, 16, 16, 2), values.dtype)  # scale, high nibble, low nibble, (even, odd element)
    pairs[..., 0] = values[:, None, :]
    pairs[..., 1] = values[:, :, None]
    return pairs.reshape(-1).view(_PAIR[dtype])


def dequantize(q: Any, dtype: str = "BF16", *, overflow: Overflow = "error") -> Any:
    """See the op's docstring."""
    check(q.scheme, dtype, overflow)
    lut = table(dtype)
    out = np.empty(q.shape, numpy_dtype(dtype))
    pairs, codes = out.view(_PAIR[dtype]), np.asarray(q.codes)
    scales = np.asarray(q.scales)
    per_block = q.scheme.block_elems // 2
    scratch = np.empty((max(1, _TILE // 2 // per_block), per_block), np.intp)
    for packed, target, scale in matrices(codes, pairs, np.ascontiguousarray(scales)):
        for rows, cols in spans(packed.shape[0], packed.shape[1], per_block, len(scratch) * per_block):
            tile = packed[rows, cols]
            index = scratch[: tile.size // per_block]
            np.copyto(index, tile.reshape(index.shape))
            base = scale[rows, cols.start // per_block : cols.stop // per_block].reshape(-1, 1)
            index += base.astype(np.intp) << 8
            box = target[rows, cols]
            flat = box.reshape(-1)
            if np.shares_memory(flat, box):
                np.take(lut, index.reshape(-1), out=flat, mode="clip")
            else:
                box[...] = np.take(lut, index, mode="clip").reshape(box.shape)
    if dtype == "F16":
        _check_f16(out, np.ascontiguousarray(scales), overflow)
    return out


def _check_f16(out: Any, scales: Any, overflow: Overflow) -> None:
    """Undo infinities: 6 · 2^14 and 4 · 2^14 are past 65504, so only scales of at least 2^14 are looked at."""
    big = np.flatnonzero((scales >= E8M0_BIAS + 14) & (scales != E8M0_NAN))
    if not big.size:
        return
    blocks = out.reshape(scales.size, -1)
    for b in big:
        bad = np.flatnonzero(np.isinf(blocks[b]))
        if bad.size and overflow == "error":
            at = int(b) * blocks.shape[1] + int(bad[0])
            value = f"scale 2^{int(scales.flat[b]) - E8M0_BIAS}"
            raise ValueRangeError(f"flat index {at}: an element of {value} is out of range of F16")
        blocks[b, bad] = np.copysign(np.float16(65504), blocks[b, bad])

"""dequantize for every scheme in NumPy, tile by tile; MXFP4 goes to the table look-up of `mxfp4`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from pipeline.errors import ValueRangeError
from pipeline.tensors.scheme import STRUCTS
from pipeline.tensors.spec import numpy_dtype
from plugins.facts import ggml_blocks
from plugins.kernels.cast.numpy import cast
from plugins.kernels.codecs import scales, scratch
from plugins.kernels.codecs.blocks import TILE, as_matrices, pieces, shape_in_blocks, spread, tiles
from plugins.kernels.codecs.decoding import decode
from plugins.kernels.codecs.elements import element
from plugins.kernels.dequantize import Overflow, check, is_mxfp4, mxfp4


def dequantize(q: Any, dtype: str = "BF16", *, overflow: Overflow = "error") -> Any:
    """See the op's docstring."""
    check(q.scheme, dtype, overflow)
    if is_mxfp4(q.scheme):
        return mxfp4.dequantize(q, dtype, overflow=overflow)
    if q.scheme.is_struct:
        values = ggml_blocks.decode(q.scheme.element.upper(), q.codes, *STRUCTS[q.scheme.element])
        return cast(values, dtype, overflow=overflow if dtype == "F16" else "inf")
    out = np.empty(q.shape, numpy_dtype(dtype))
    # 2^100 under any nonzero element is past F16 but not past float32: saturation stays apart from infinity.
    most = 2.0**100 if dtype == "F16" else np.inf
    for lead, rows, cols, y in boxes(q, most):
        target = out[lead] if out.ndim > 1 else out[None]
        if dtype != "F16":
            with np.errstate(over="ignore", invalid="ignore"):
                np.copyto(target[rows, cols], y, casting="unsafe")
            continue
        try:
            target[rows, cols] = cast(y, dtype, overflow=overflow)
        except ValueRangeError:
            r, c = np.argwhere(np.isinf(cast(y, dtype, overflow="inf")))[0]
            index = (*lead, rows.start + int(r), cols.start + int(c))[-out.ndim :]
            at = int(np.ravel_multi_index(index, out.shape))
            raise ValueRangeError(f"flat index {at}: {y[r, c]} is out of range of {dtype}") from None
    return out


def boxes(q: Any, most: float = np.inf) -> Iterator[tuple[tuple[int, ...], slice, slice, Any]]:
    """(leading index, rows, columns, float32 values) that together cover `q`, in cache-sized boxes.

    The values lie in a buffer of this thread, which the next box overwrites.

    Args:
        most: the largest factor to use.
    """
    scheme, e = q.scheme, element(q.scheme.element)
    n = q.shape[-1]
    factors, codes = np.minimum(scales.totals(q), np.float32(most)), np.asarray(q.codes)
    zeros = None if q.zeros is None else np.asarray(q.zeros).astype(np.float32)
    for lead, packed in as_matrices(codes):
        rows = packed.shape[0]
        total = factors[lead].reshape(scheme.blocks(rows, n))
        zero = None if zeros is None else zeros[lead].reshape(total.shape)
        r, w = scheme.block_rows or rows, scheme.block_elems or n
        for box in tiles(scheme, rows, n):
            size = (box[0].stop - box[0].start) * (box[1].stop - box[1].start)
            one = size <= TILE or box[1].stop - box[1].start > w
            for part in (box,) if one else pieces(*box):
                height, width = part[0].stop - part[0].start, part[1].stop - part[1].start
                at = slice(part[1].start * e.bits // 8, part[1].stop * e.bits // 8)
                shape = shape_in_blocks(scheme, height, width) if one else (1, height, 1, width)
                down = slice(part[0].start // r, part[0].start // r + shape[0])
                across = slice(part[1].start // w, part[1].start // w + shape[2])
                y = decode(e, packed[part[0], at], scratch.floats(0, (height, width)))
                blocks = y.reshape(shape)
                with np.errstate(over="ignore", invalid="ignore", under="ignore"):
                    if scheme.zero == "int" and zero is not None:
                        spread(np.subtract, blocks, zero[down, None, across, None])
                    spread(np.multiply, blocks, total[down, None, across, None])
                    if scheme.zero == "min_f16" and zero is not None:
                        spread(np.add, blocks, zero[down, None, across, None])
                yield lead, *part, y

"""gptq in NumPy: a column of all rows at once, and later columns by products of matrices (`feedback`)."""

from typing import Any

import numpy as np

from plugins.kernels.codecs import bits
from plugins.kernels.codecs.elements import element
from plugins.kernels.codecs.rounding import encode
from plugins.kernels.gptq import feedback
from plugins.kernels.gptq.given import checked
from plugins.kernels.quantize.numpy import empty, refuse_unstorable
from plugins.kernels.quantize.numpy.scale import Found, block_scales, decoded, quotients


def gptq(x: Any, factor: Any, scheme: Any, *, order: Any = None, second: Any = None, **recipe: Any) -> Any:
    """See the op's docstring."""
    how, (rows, n) = checked(x, factor, scheme, order, second, recipe), x.shape
    size, e = scheme.block_elems or n, element(scheme.element)
    q, codes = empty(x.shape, scheme), np.empty((n, rows), np.uint8)
    if q.second is not None:
        q.second[...] = second
    blocks = dict[int, Found]()

    def find_scales(block: int, columns: Any, weights: Any) -> None:
        values = np.ascontiguousarray(columns, np.float32).reshape(rows, 1, 1, size)
        ends = values.min(axis=(1, 3), keepdims=True), values.max(axis=(1, 3), keepdims=True)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            found = block_scales(values, ends, scheme, how, second, weights.reshape(1, 1, 1, size))
        refuse_unstorable(found, np.maximum(*map(np.abs, ends)), scheme)
        q.scales[:, block] = found.stored[:, 0, 0, 0]
        if q.zeros is not None:
            q.zeros[:, block] = found.zeros[:, 0, 0, 0]
        blocks[block] = found

    def rounded(column: int, values: Any) -> Any:
        found = blocks[column // size]
        with np.errstate(invalid="ignore", over="ignore", divide="ignore", under="ignore"):
            v = quotients(values.reshape(rows, 1, 1, 1), found, scheme, how)
            code = encode(e, v, how.ties, how.zero, how.is_narrow)
            y = decoded(code, found.total, found.zeros, scheme)
        codes[column] = code.reshape(rows)
        return y.reshape(rows)

    feedback.correct(x, factor, size, feedback.by_block(find_scales, size), feedback.by_column(rounded), order=order)
    q.codes[...] = bits.pack(codes.T, e.bits)
    return q

"""The definition of gptq, one value after the other."""

from typing import Any

import numpy as np

from plugins.kernels.codecs import bits
from plugins.kernels.codecs.elements import element
from plugins.kernels.dequantize.reference import value_of
from plugins.kernels.gptq.given import checked
from plugins.kernels.quantize.numpy import empty
from plugins.kernels.quantize.reference.block import code_of, shared_of


def gptq(x: Any, factor: Any, scheme: Any, *, order: Any = None, second: Any = None, **recipe: Any) -> Any:
    """See the op's docstring."""
    how, (rows, n) = checked(x, factor, scheme, order, second, recipe), x.shape
    size, e, q = scheme.block_elems or n, element(scheme.element), empty(x.shape, scheme)
    if q.second is not None:
        q.second[...] = second
    w, upper = np.array(x, np.float64), np.asarray(factor, np.float64)
    columns = np.arange(n) if order is None else np.asarray(order)
    weights = np.empty(n)
    weights[columns] = np.diag(upper) ** -2.0
    codes, shared = np.zeros((rows, n), np.uint8), {}

    def begin(block: int) -> None:
        own = slice(block * size, (block + 1) * size)
        for r, values in enumerate(w[:, own].astype(np.float32).tolist()):
            with np.errstate(all="ignore"):
                found = shared_of(values, (min(values), max(values)), scheme, how, second, weights[own].tolist())
            assert found is not None
            shared[r, block], q.scales[r, block] = found, found.scale
            if q.zeros is not None:
                q.zeros[r, block] = found.zero

    for block in range(n // size if order is not None else 0):
        begin(block)
    for k, column in enumerate(columns.tolist()):
        if order is None and k % size == 0:
            begin(k // size)
        for r in range(rows):
            under = shared[r, column // size]
            with np.errstate(all="ignore"):
                codes[r, column] = code_of(float(np.float32(w[r, column])), under, scheme, how)
                rounded = np.float32(value_of(int(codes[r, column]), under.total, under.zero, scheme))
            error = (w[r, column] - float(rounded)) / upper[k, k]
            w[r, columns[k + 1 :]] -= upper[k, k + 1 :] * error
    q.codes[...] = bits.pack(codes, e.bits)
    return q

"""dequantize, the definition: one value at a time; see the op's docstring for the order of the operations."""

from typing import Any

import numpy as np

from pipeline.tensors.scheme import STRUCTS, Scheme
from plugins.facts import ggml_blocks
from plugins.kernels.cast.reference import cast
from plugins.kernels.codecs import dynamic8
from plugins.kernels.codecs.elements import element
from plugins.kernels.codecs.mx import E8M0_BIAS, E8M0_NAN
from plugins.kernels.dequantize import Overflow, check
from plugins.kernels.pieces import dequantized

F32: Any = np.float32
PIECE = 1 << 14  # elements: numbers of Python's, some 150 bytes for each


def dequantize(q: Any, dtype: str = "BF16", *, overflow: Overflow = "error") -> Any:
    """See the op's docstring."""
    check(q.scheme, dtype, overflow)
    return dequantized(_dequantize, q, dtype, PIECE, overflow=overflow)


def _dequantize(q: Any, dtype: str, *, overflow: Overflow) -> Any:
    scheme: Scheme = q.scheme
    if scheme.is_struct:  # what its bytes are is defined there
        values = ggml_blocks.decode(scheme.element.upper(), q.codes, *STRUCTS[scheme.element])
        return cast(values, dtype, overflow=overflow if dtype == "F16" else "inf")
    bits, n = scheme.element_bits, q.shape[-1]
    packed = np.ascontiguousarray(q.codes)
    stream = np.unpackbits(packed, axis=-1, bitorder="little").reshape(*packed.shape[:-1], n, bits).astype(np.uint8)
    codes = (stream << np.arange(bits, dtype=np.uint8)).sum(axis=-1, dtype=np.uint8)
    factors = dynamic8.decode(q.scales, q.second) if scheme.second == "dynamic8" else None
    out = np.empty(q.shape)
    with np.errstate(all="ignore"):
        for index in np.ndindex(*q.shape):
            *lead, r, c = index if len(index) > 1 else (0, *index)
            block = (
                *lead,
                r // scheme.block_rows if scheme.block_rows else 0,
                c // scheme.block_elems if scheme.block_elems else 0,
            )
            block = block if len(index) > 1 else block[1:]
            if factors is not None:
                total = factors[block]
            else:
                total = factor(
                    np.asarray(q.scales)[block],
                    scheme,
                    None if q.second is None else q.second[(*lead, 0, 0)[-q.second.ndim :]],
                )
            out[index] = value_of(codes[index], total, None if q.zeros is None else q.zeros[block], scheme)
    return cast(out, dtype, overflow=overflow if dtype == "F16" else "inf")


def factor(scale: Any, scheme: Scheme, second: Any) -> Any:
    """What the codes of a block are multiplied by: a power of two, or a float32."""
    if scheme.scale == "e8m0":
        return np.nan if scale == E8M0_NAN else 2.0 ** (int(scale) - E8M0_BIAS)
    if scheme.second == "f32":
        return F32(scale) * F32(second)
    if scheme.second == "inverse_f32":
        return F32(scale) / F32(second)
    return F32(scale)


def value_of(code: int, total: Any, zero: Any, scheme: Scheme) -> Any:
    """The value of one code: float32, each operation rounded; under a power of two nearly always exact."""
    v = element(scheme.element).values[code]
    if scheme.scale == "e8m0":
        exact = float(v) * total
        return F32(exact) if abs(exact) < 2.0**128 else exact  # past float32, F16 has a say of its own
    if scheme.zero == "int":
        v = v - F32(zero)
    v = v * total
    if scheme.zero == "min_f16":
        v = v + F32(zero)
    return v

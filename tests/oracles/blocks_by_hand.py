"""Any block format decoded one element at a time, from the `Scheme` docstring and the formats' specifications.

Slow and separate on purpose: no table, packing or kernel of Weightmill's is used. NumPy only.
"""

import math
from typing import Any

import numpy as np

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # OCP MX v1.0, table 5
# QLoRA (arXiv 2305.14314), appendix E, as fp32.
NF4 = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip


def element(kind: str, code: int) -> float:
    """What a code is worth."""
    if kind == "e2m1":
        return math.copysign(E2M1[code & 7], -1.0 if code & 8 else 1.0)
    if kind == "nf4":
        return float(NF4[code])
    if kind == "e4m3":  # OCP OFP8: bias 7, no infinity, NaN only where all bits are set
        sign, exponent, mantissa = -1.0 if code & 0x80 else 1.0, code >> 3 & 15, code & 7
        if (exponent, mantissa) == (15, 7):
            return math.nan
        return sign * (math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10))
    if kind.startswith("uint"):
        return float(code)
    bits = int(kind.removeprefix("int"))
    return float(code - (1 << bits) if code >> (bits - 1) else code)


def codes(q: Any) -> Any:
    """The codes of a QTensor one by one, [..., n]."""
    bits = {"e2m1": 4, "nf4": 4, "e4m3": 8}.get(q.scheme.element) or int(q.scheme.element.lstrip("uint"))
    *rows, nbytes = q.codes.shape
    out = np.zeros((*rows, nbytes * 8 // bits), np.int64)
    for index in np.ndindex(*rows):
        stream = int.from_bytes(q.codes[index].tobytes(), "little")
        for i in range(out.shape[-1]):
            out[(*index, i)] = stream >> (i * bits) & ((1 << bits) - 1)
    return out


def scale(kind: str, value: Any) -> float:
    return math.ldexp(1.0, int(value) - 127) if kind == "e8m0" else float(value)


def dequantize(q: Any) -> Any:
    """float64 values of a QTensor [..., out, in] (not double-quantized), computed without rounding between."""
    s = q.scheme
    found = codes(q)
    out = np.zeros(found.shape)
    for index in np.ndindex(*found.shape):
        *lead, row, column = index
        block = (*lead, row // s.block_rows if s.block_rows else 0, column // s.block_elems if s.block_elems else 0)
        value = element(s.element, int(found[index]))
        if s.zero == "int":
            value -= int(q.zeros[block])
        value *= scale(s.scale, q.scales[block])
        if s.second is not None:
            second = float(q.second[(*lead, 0, 0)])
            value = value / second if s.second == "inverse_f32" else value * second
        out[index] = value
    return out

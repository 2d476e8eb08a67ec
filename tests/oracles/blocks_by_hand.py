"""Any block format decoded in float64, from the `Scheme` docstring and the formats' specifications.

Separate on purpose: no table, packing or kernel of Weightmill's is used. NumPy only.
"""

import math
from typing import Any

import numpy as np

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # OCP MX v1.0, table 5
WIDTHS = {"e2m1": 4, "nf4": 4, "e2m3": 6, "e3m2": 6, "e4m3": 8, "e5m2": 8}  # of integers it is in the name
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
    if kind == "e2m3":  # OCP MX v1.0, table 3: bias 1
        exponent, mantissa = code >> 3 & 3, code & 7
        return math.copysign(
            mantissa / 8 if exponent == 0 else math.ldexp(1 + mantissa / 8, exponent - 1), -(code & 32) or 1
        )
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
    return float(code - (1 << bits) if code >> (bits - 1) & 1 else code)


def codes(q: Any) -> Any:
    """The codes of a QTensor one by one, [..., n]: element i is bits i · width and up of its row's byte stream."""
    width = WIDTHS.get(q.scheme.element) or int(q.scheme.element[-1])
    bits = np.unpackbits(np.ascontiguousarray(q.codes), axis=-1, bitorder="little")
    each = bits.reshape(*bits.shape[:-1], -1, width).astype(np.int64)
    return (each << np.arange(width)).sum(-1)


def dequantize(q: Any) -> Any:
    """float64 values of a QTensor [..., out, in] (not double-quantized), rounded nowhere that float64 does not."""
    s = q.scheme
    found = codes(q)
    *_, rows, columns = found.shape
    size = {"e4m3": 256, "int8": 256, "uint8": 256, "e2m3": 64}.get(s.element, 16)
    worth = np.array([element(s.element, c) for c in range(size)])
    out = worth[found]

    def spread(scales: Any) -> Any:
        height, across = s.block_rows or rows, s.block_elems or columns
        return np.repeat(np.repeat(scales, height, -2), across, -1)[..., :rows, :columns]

    if s.zero == "int":
        out = out - spread(q.zeros.astype(np.float64))
    if s.scale == "e8m0":
        out = out * spread(np.ldexp(1.0, q.scales.astype(np.int64) - 127))
    else:
        out = out * spread(q.scales.astype(np.float64))
    if s.zero == "min_f16":
        out = out + spread(q.zeros.astype(np.float64))
    if s.second is not None:
        out = out / q.second.astype(np.float64) if s.second == "inverse_f32" else out * q.second.astype(np.float64)
    return out


def dequantize_float32(q: Any, values: Any, table: Any = None) -> Any:
    """float32 values of a QTensor [..., out, in], an operation at a time as the `dequantize` op promises.

    Args:
        values: float64 value of every code of the element.
        table: bitsandbytes' dynamic map, for scales that are quantized themselves.
    """
    s, found = q.scheme, values.astype(np.float32)[codes(q)]
    rows, columns = found.shape[-2:]

    def spread(a: Any) -> Any:
        a = np.repeat(np.repeat(a, s.block_rows or rows, -2), s.block_elems or columns, -1)
        return a[..., :rows, :columns].astype(np.float32)

    with np.errstate(all="ignore"):
        if s.scale == "e8m0":  # exact, then rounded once
            power = np.where(q.scales == 255, np.nan, np.ldexp(1.0, q.scales.astype(np.int64) - 127))
            wide = np.repeat(np.repeat(power, s.block_rows or rows, -2), s.block_elems or columns, -1)
            return (values[codes(q)] * wide[..., :rows, :columns]).astype(np.float32)
        scales = q.scales.astype(np.float32)
        if s.second == "dynamic8":
            each = np.repeat(q.second[:-1], 256)[: q.scales.size].reshape(q.scales.shape)
            scales = table.astype(np.float32)[q.scales] * each + q.second[-1]
        elif s.second is not None:
            scales = scales / q.second if s.second == "inverse_f32" else scales * q.second
        if s.zero == "int":
            found = found - spread(q.zeros)
        found = found * spread(scales)
        return found + spread(q.zeros) if s.zero == "min_f16" else found

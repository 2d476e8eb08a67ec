"""dequantize: a QTensor becomes an array again.

    dequantize(q, dtype="BF16", *, overflow="error") -> array [..., n] of bfloat16, float32 or float16

Under an E8M0 scale a value is element · scale, exactly, wherever `dtype` can hold it: subnormals included (scale byte
0 is 2^-127 and 0.5 · 2^-127 is a subnormal of both BF16 and F32); -0 stays -0; scale 0xFF makes the block NaN (OCP MX
v1.0, section 5.1). Under any other scale the value is a float32, each operation rounded once, in this order:

    factor = scale                        or scale · second (f32), or scale / second (inverse_f32),
                                          or map[scale] · second[block of 256] + offset (dynamic8)
    value  = element · factor             or (element - zero) · factor, or element · factor + minimum

A block that is a struct of ggml (`STRUCTS`) has float32 values too, each operation rounded once, as `dequantize_row_…`
of ggml-quants.c computes them: factor · scale · code, less second factor · minimum where it has minima.

All of that then is rounded to `dtype`, to nearest even. Past the range of BF16 and F32 the result is the IEEE infinity:
that is what multiplying gives, and what transformers' decoder does.

F16 rounds to nearest even below its normal range. Past 65504, `overflow` decides: "error" raises ValueRangeError with
the first flat index; "clamp" gives ±65504. A finite value never becomes an infinity in F16.
"""

from typing import Any, Literal

from pipeline.errors import ConfigError, did_you_mean

Overflow = Literal["error", "clamp"]
DTYPES = ("BF16", "F32", "F16")


def is_mxfp4(scheme: Any) -> bool:
    """Whether one table holds every answer: pairs of e2m1 codes under e8m0 scales, blocks within a row."""
    blocks = scheme.block_elems > 0 and scheme.block_elems % 2 == 0
    return (scheme.element, scheme.scale, scheme.block_rows) == ("e2m1", "e8m0", 1) and blocks


def check(scheme: Any, dtype: str, overflow: str) -> None:
    """Raise ConfigError unless this op decodes `scheme` into `dtype`."""
    if scheme.scale == "e8m0" and (scheme.zero is not None or scheme.second is not None):
        raise ConfigError(
            f"dequantize: e8m0 scales with a zero point or a second-level scale have no meaning: {scheme}"
        )
    if dtype not in DTYPES:
        raise ConfigError(f"dequantize: dtype {dtype!r} is unknown{did_you_mean(dtype, DTYPES)}")
    if overflow not in ("error", "clamp"):
        raise ConfigError(f"dequantize: overflow {overflow!r} is unknown{did_you_mean(overflow, ['error', 'clamp'])}")

"""dequantize: a QTensor becomes an array again, value = element · scale.

    dequantize(q, dtype="BF16", *, overflow="error") -> array [..., n] of bfloat16, float32 or float16

BF16 and F32 are exact for every code and scale whose product they can hold, subnormals included (scale byte 0 is
2^-127 and 0.5 · 2^-127 is a subnormal of both); -0 stays -0; scale 0xFF makes the block NaN (OCP MX v1.0, section
5.1). Past their range, which only scale bytes 253 and 254 reach, the result is the IEEE infinity: that is what
multiplying gives, and what transformers' decoder does.

F16 rounds to nearest even below its normal range. Past 65504, `overflow` decides: "error" raises ValueRangeError with
the first flat index; "clamp" gives ±65504. A finite value never becomes an infinity in F16.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pipeline.errors import ConfigError, did_you_mean
from pipeline.ops import Kernel, Op

Overflow = Literal["error", "clamp"]
DTYPES = ("BF16", "F32", "F16")

OP = Op(
    "dequantize",
    {
        "reference": "plugins.kernels.dequantize.reference:dequantize",
        "numpy": "plugins.kernels.dequantize.numpy_backend:dequantize",
    },
)


@dataclass(frozen=True)
class Dequantize(Kernel):
    """The dequantize op with its backends, as a plugin node."""

    op: ClassVar[Op] = OP


def check(scheme: Any, dtype: str, overflow: str) -> None:
    """Raise ConfigError unless this op decodes `scheme` into `dtype`."""
    if (scheme.element, scheme.scale, scheme.block_rows) != ("e2m1", "e8m0", 1) or not scheme.block_elems:
        raise ConfigError(f"dequantize knows blocks of e2m1 elements in one row with e8m0 scales, not {scheme}")
    if dtype not in DTYPES:
        raise ConfigError(f"dequantize: dtype {dtype!r} is unknown{did_you_mean(dtype, DTYPES)}")
    if overflow not in ("error", "clamp"):
        raise ConfigError(f"dequantize: overflow {overflow!r} is unknown{did_you_mean(overflow, ['error', 'clamp'])}")

"""quantize, the definition: one block at a time in exact arithmetic. Slow, and meant to be read.

Python floats are doubles, and every quotient here is a bfloat16, float16 or float32 value divided by a power of two
within 2^±127, hence exact: the only rounding is the one to E2M1 that the op is about.
"""

import math
from typing import Any

import numpy as np

from pipeline.errors import ValueRangeError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.stats import ErrorStats
from plugins.kernels.dequantize.reference import dequantize
from plugins.kernels.elements import E2M1_BOUNDARIES, E2M1_EMAX, E2M1_SIGN, E8M0_BIAS, E8M0_MAX, E8M0_NAN
from plugins.kernels.quantize import Nonfinite, ScaleRule, Ties, Tiny, Zero, check


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
    with np.errstate(invalid="ignore"):  # a signalling NaN is a value like any other here
        values = np.ascontiguousarray(x).astype(np.float64).reshape(-1, scheme.block_elems)
    codes, scales = [], []
    for b, block in enumerate(values.tolist()):
        scale = scale_byte(block, scale_rule)
        if scale == E8M0_NAN:
            if nonfinite == "error":
                i = next(i for i, v in enumerate(block) if not math.isfinite(v))
                raise ValueRangeError(f"flat index {b * scheme.block_elems + i}: {block[i]} has no E2M1 value")
            codes += [0] * len(block)
        else:
            unit = 2.0 ** (scale - E8M0_BIAS)
            if tiny == "torchao" and scale == 0:
                unit = 1.0 if scale_rule == "rceil" else 2.0**-126
            codes += [element_code(v / unit, ties, zero) for v in block]
        scales.append(scale)
    pairs = np.array(codes, np.uint8).reshape(-1, 2)
    shapes = scheme.components(x.shape)
    packed = pairs[:, 0] | pairs[:, 1] << 4  # the even element in the low nibble
    q = QTensor(packed.reshape(shapes["codes"]), np.array(scales, np.uint8).reshape(shapes["scales"]), scheme)
    if not measure:
        return q
    finite = np.array(scales) != E8M0_NAN
    decoded = dequantize(q, "F32").reshape(values.shape)
    return q, ErrorStats.between(values[finite].astype(np.float32), decoded[finite])


def scale_byte(block: list[float], rule: ScaleRule) -> int:
    """E8M0 byte (section 5.4.1) of a block: 0xFF if it holds a NaN or an infinity, 0 if it is all zero."""
    if not all(map(math.isfinite, block)):
        return E8M0_NAN
    amax = max(map(abs, block))
    if amax == 0:
        return 0
    mantissa, exponent = math.frexp(amax)
    mantissa, exponent = mantissa * 2, exponent - 1  # amax = mantissa · 2^exponent, 1 ≤ mantissa < 2
    up = {
        "floor": False,  # section 6.3: the largest power of two ≤ amax
        "ceil": mantissa > 1,
        "even": mantissa >= 1.75,  # nearer to 2 than to 1.5, and half up
        "rceil": mantissa > 1.5,  # 1.5 · 4 = 6 still fits
    }[rule]
    # Section 6.3: divided by the largest power of two of the element, then clamped to what E8M0 can say.
    return min(max(exponent + up - E2M1_EMAX + E8M0_BIAS, 0), E8M0_MAX)


def element_code(v: float, ties: Ties, zero: Zero) -> int:
    """E2M1 code (section 5.3.3) nearest to `v`; magnitudes past 6 saturate (section 6.3)."""
    magnitude = abs(v)
    code = 0
    for k, boundary in enumerate(E2M1_BOUNDARIES):
        # On the boundary between codes k and k + 1: the mantissa bit is the code's lowest bit, so even means even.
        up_on_tie = {"even": k % 2 == 1, "zero": False, "away": True}[ties]
        code += magnitude > boundary or (magnitude == boundary and up_on_tie)
    negative = math.copysign(1, v) < 0 and not (code == 0 and zero == "positive")
    return code | (E2M1_SIGN if negative else 0)

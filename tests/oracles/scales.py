"""Scales: rounding to the encodings that hold them, and powers of two found by comparing.

float32 arithmetic is done in float64 and rounded once an operation, which gives the float32 result of +, -, · and /
(53 ≥ 2 · 24 + 2 bits). NumPy only.
"""

import itertools

import numpy as np

from tests.oracles.elements import largest, nearest, values

POWERS = np.array([2.0**k for k in range(-200, 200)])
MANTISSA_BITS = {"e2m1": 1, "e2m3": 3, "e3m2": 2, "e4m3": 3, "e5m2": 2, "mxint8": 6}


def f32(x):
    """Rounded to float32, held in float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(x, np.float64).astype(np.float32).astype(np.float64)


def stored(x, encoding):
    """float64 `x` rounded to nearest even in an encoding; E4M3 saturates."""
    x = np.asarray(x, np.float64)
    if encoding == "f32":
        return f32(x)
    if encoding == "f16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float64)
    if encoding == "e4m3":
        return values("e4m3")[nearest(x, "e4m3")]
    assert encoding == "bf16"  # 8 significant bits, the last worth at least 2^-133
    exponent = np.frexp(x)[1]
    unit = np.ldexp(1.0, np.maximum(exponent - 8, -133))
    y = np.rint(x / unit) * unit
    return np.where(np.abs(y) < 2.0**128, y, np.copysign(np.inf, x))


def e8m0(amax, kind, rule):
    """Scale bytes (OCP MX v1.0, sections 5.4.1 and 6.3) of float64 maxima; 0 for zero."""
    emax = POWERS[largest(kind) >= POWERS].max()
    if rule == "rceil":  # the smallest scale under which amax does not saturate
        power = POWERS[np.searchsorted(POWERS * largest(kind), amax, side="left").clip(0, len(POWERS) - 1)]
    else:
        if rule == "even":  # amax rounded to the element's mantissa, half up
            steps = 1 << MANTISSA_BITS[kind]
            grid = np.sort(np.concatenate([POWERS[:-1] * (1 + i / steps) for i in range(steps)]))
            amax = np.where(amax > 0, grid[np.searchsorted((grid[:-1] + grid[1:]) / 2, amax, side="right")], 0)
        if rule == "ceil":
            at = np.searchsorted(POWERS, amax, side="left")
        else:
            at = np.searchsorted(POWERS, amax, side="right") - 1
        power = POWERS[at.clip(0, len(POWERS) - 1)] / emax
    byte = np.rint(np.log2(power)).astype(int) + 127
    return np.where(amax > 0, byte.clip(0, 254), 0).astype(np.uint8)


def dynamic_map():
    """bitsandbytes' signed dynamic map of 256 values (arXiv 2110.02861, section 2.1), in order.

    0, 1 and, in decade 10^(i - 6), plus and minus the middles of 2^i equal parts of [0.1, 1]; the parts' ends are
    float32, counted from the nearer end of the interval with one rounding, which is how torch.linspace has them.
    """
    found = [0.0, 1.0]
    for i in range(7):
        n = 1 << i
        step = f32(f32(1 - f32(0.1)) / n)
        near = (n + 1) // 2
        ends = [f32(f32(0.1) + step * k) if k < near else f32(1 - step * (n - k)) for k in range(n + 1)]
        for low, high in itertools.pairwise(ends):
            middle = f32(f32(f32(low + high) / 2) * f32(10.0 ** (i - 6)))
            found += [middle, -middle]
    return np.sort(np.array(found))

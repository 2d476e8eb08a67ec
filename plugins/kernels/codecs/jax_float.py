"""float32 products and quotients in 32-bit integers, for JAX: every operation rounded once, whatever the device does.

XLA flushes subnormals on CPUs, may fuse a product and a sum, and divides by reciprocals on some devices. What scales
are made of must not depend on that, and there are few of them, so they can afford integers. Results are IEEE 754
float32 patterns, to nearest even, subnormals included.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_INFINITY = 0x7F800000
_SIGN = np.uint32(0x80000000)


def bits_of(x: Any) -> Any:
    """uint32 patterns of float32."""
    return jax.lax.bitcast_convert_type(x, jnp.uint32)


def float_of(bits: Any) -> Any:
    """float32 of uint32 patterns."""
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def widened(x: Any) -> Any:
    """float32 of float32, float16 or bfloat16, exactly: of the last in integers, as a conversion may flush."""
    if x.dtype != jnp.bfloat16:
        return x.astype(jnp.float32)
    return float_of(jax.lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.uint32) << np.uint32(16))


def leading_zeros(n: Any) -> Any:
    """uint32 of uint32 below 2^31, 32 of 0; Triton and Mosaic GPU have no `lax.clz`.

    A float's exponent says where the highest bit is. Without the bit after that, rounding reaches no power of two.
    """
    as_float = (n & ~(n >> 1)).astype(jnp.int32).astype(jnp.float32)
    return jnp.where(n == 0, np.uint32(32), 158 - (bits_of(as_float) >> 23))


def parts(bits: Any) -> tuple[Any, Any]:
    """(significand, exponent) of finite patterns: |x| = significand · 2^exponent, 2^23 ≤ significand < 2^24 or 0."""
    field = (bits >> 23) & 0xFF
    fraction = bits & 0x7FFFFF
    significand = jnp.where(field > 0, fraction | 0x800000, fraction)
    shift = jnp.where(significand > 0, leading_zeros(significand) - 8, 0)
    return significand << shift, jnp.maximum(field, 1).astype(jnp.int32) - 150 - shift.astype(jnp.int32)


def is_zero(x: Any) -> Any:
    """Whether a float32 is ±0, and no subnormal: XLA's threads flush, so neither `x == 0` tells, nor a test of all bits
    but the sign, of which LLVM makes that comparison."""
    return parts(bits_of(x))[0] == 0


def rounded(sign: Any, wide: Any, exponent: Any) -> Any:
    """Pattern of ± wide · 2^exponent; `wide` is 0 or in [2^25, 2^26), its last bit set when anything lies below it."""
    top = exponent + 25
    drop = jnp.clip(2 + (-126 - top), 2, 31).astype(jnp.uint32)
    whole, rest, half = wide >> drop, wide & ((jnp.uint32(1) << drop) - 1), jnp.uint32(1) << (drop - 1)
    whole += ((rest > half) | ((rest == half) & (whole & 1 == 1))).astype(jnp.uint32)
    field = jnp.clip(top + 126, 0, 254).astype(jnp.uint32)
    return jnp.where(wide == 0, 0, jnp.minimum(whole + (field << 23), _INFINITY)) | sign


def _narrowed(wide: Any, sticky: Any, exponent: Any) -> tuple[Any, Any]:
    """`wide` in [2^25, 2^27) as `rounded` wants it."""
    over = (wide >> 26).astype(jnp.uint32)
    wide = (wide >> over) | (wide & over) | sticky.astype(jnp.uint32)
    return wide, exponent + over.astype(jnp.int32)


def _normal(bits: Any) -> Any:
    """The floats of patterns, subnormals as ±1: for what needs no rounding (0, infinity, NaN), whoever flushes."""
    subnormal = (bits & _INFINITY == 0) & (bits & 0x7FFFFF != 0)
    return float_of(jnp.where(subnormal, bits & _SIGN | 0x3F800000, bits))


def multiplied(a: Any, b: Any) -> Any:
    """float32 a · b."""
    a, b = jnp.broadcast_arrays(a, b)
    p, q = bits_of(a), bits_of(b)
    (m, i), (n, j) = parts(p), parts(q)
    m1, m0, n1, n0 = m >> 12, m & 0xFFF, n >> 12, n & 0xFFF
    cross = m1 * n0 + m0 * n1
    low = ((cross & 0x1FF) << 12) + m0 * n0
    wide = (m1 * n1 << 3) + (cross >> 9) + (low >> 21)
    wide, exponent = _narrowed(wide, (low & 0x1FFFFF) != 0, i + j + 21)
    found = float_of(rounded((p ^ q) & _SIGN, wide, exponent))
    return jnp.where(jnp.isfinite(a) & jnp.isfinite(b), found, _normal(p) * _normal(q))


def divided(a: Any, b: Any) -> Any:
    """float32 a / b."""
    a, b = jnp.broadcast_arrays(a, b)
    p, q = bits_of(a), bits_of(b)
    (m, i), (n, j) = parts(p), parts(q)
    by_zero = n == 0  # and not by the bits: see `is_zero`
    n = jnp.where(by_zero, 1 << 23, n)
    # An estimate that may be dozens of units off; what is left over fits 32 bits whatever the products wrap to.
    estimate = m.astype(jnp.float32) / n.astype(jnp.float32) * jnp.float32(1 << 26)
    wide = estimate.astype(jnp.uint32)
    left = (-(wide * n)).astype(jnp.int32) + (m << 26).astype(jnp.int32)
    step = jnp.floor(left.astype(jnp.float32) / n.astype(jnp.float32)).astype(jnp.int32)
    divisor = n.astype(jnp.int32)
    left -= step * divisor
    fix = (left >= divisor).astype(jnp.int32) - (left < 0).astype(jnp.int32)
    left -= fix * divisor
    wide, exponent = _narrowed(wide + (step + fix).astype(jnp.uint32), left != 0, i - j - 26)
    wide = jnp.where(m == 0, 0, wide)
    found = float_of(rounded((p ^ q) & _SIGN, wide, exponent))
    plain = jnp.isfinite(a) & jnp.isfinite(b) & ~by_zero
    return jnp.where(plain, found, _normal(p) / _normal(q))


def subtracted(a: Any, b: Any) -> Any:
    """float32 a - b."""
    a, b = jnp.broadcast_arrays(a, b)
    p, q = bits_of(a), bits_of(b) ^ _SIGN
    swap = (p & ~_SIGN) < (q & ~_SIGN)
    p, q = jnp.where(swap, q, p), jnp.where(swap, p, q)  # |p| is the larger
    (m, i), (n, j) = parts(p), parts(q)
    away = jnp.clip(jnp.where(n > 0, i - j, 31), 0, 31).astype(jnp.uint32)
    m, n = m << 6, n << 6  # six more places, the last of which keeps what is shifted out
    n = jnp.where(away > 30, (n > 0).astype(jnp.uint32), (n >> away) | ((n & ((jnp.uint32(1) << away) - 1)) > 0))
    total = jnp.where((p ^ q) >> 31 == 1, m - n, m + n)
    lead = leading_zeros(total).astype(jnp.int32)  # to 26 bits: 6 leading zeros
    down = jnp.clip(6 - lead, 0, 6).astype(jnp.uint32)
    up = jnp.clip(lead - 6, 0, 31).astype(jnp.uint32)
    wide = ((total >> down) | ((total & ((jnp.uint32(1) << down) - 1)) > 0)) << up
    zero = jnp.where((p ^ q) >> 31 == 1, 0, p & _SIGN)  # x - x is +0, and (-0) - (+0) is -0
    found = rounded(p & _SIGN, wide, i - 6 + down.astype(jnp.int32) - up.astype(jnp.int32))
    found = float_of(jnp.where(total == 0, zero, found))
    return jnp.where(jnp.isfinite(a) & jnp.isfinite(b), found, _normal(bits_of(a)) - _normal(bits_of(b)))


def added(a: Any, b: Any) -> Any:
    """float32 a + b."""
    return subtracted(a, float_of(bits_of(b) ^ _SIGN))

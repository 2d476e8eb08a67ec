"""MXFP4 by search, written from OCP Microscaling Formats (MX) v1.0: what the codec under test must agree with.

Nothing is computed from exponents or bit fields here. A scale is found among the 255 powers of two by comparing; a code
is the nearest of the sixteen values by measuring the distance to each. float64 holds every operand, and every
distance that decides a tie, exactly. Slow and memory-hungry: a few million values at most.
"""

import numpy as np

VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])  # section 5.3.3, table 5
SCALES = np.array([2.0**k for k in range(-127, 128)])  # section 5.4.1; byte 255 is NaN
_POWERS = np.array([2.0**k for k in range(-160, 131)])


def scale_bytes(amax, rule):
    """E8M0 bytes for float64 maxima; zero gives 0."""
    if rule == "rceil":  # the smallest scale under which amax is not past 6
        byte = np.searchsorted(SCALES * 6, amax, side="left")
        return np.minimum(byte, 254).astype(np.uint8)
    if rule == "even":  # round to {1, 1.5} · 2^k first, halves up
        grid = np.sort(np.concatenate([_POWERS, 1.5 * _POWERS]))
        halfway = (grid[:-1] + grid[1:]) / 2
        amax = np.where(amax > 0, grid[np.searchsorted(halfway, amax, side="right")], 0)
        rule = "floor"
    side = {"floor": "right", "ceil": "left"}[rule]
    at = np.searchsorted(_POWERS, amax, side=side) - (rule == "floor")
    power = np.where(amax > 0, _POWERS[np.clip(at, 0, None)], 0)
    return np.clip(np.searchsorted(SCALES, power / 4, side="left"), 0, 254).astype(np.uint8)  # 4 = 2^emax


def codes_of(ratios, ties, zero="signed"):
    """E2M1 codes nearest to float64 `ratios` (any shape)."""
    distance = np.abs(np.abs(ratios)[..., None] - VALUES[:8])
    low = np.argmin(distance, axis=-1)  # the smaller of two equally near
    high = 7 - np.argmin(distance[..., ::-1], axis=-1)
    pick = {"zero": low, "away": high, "even": np.where(low % 2 == 0, low, high)}[ties]
    negative = np.signbit(ratios) & ((pick > 0) | (zero == "signed"))
    return (pick + 8 * negative).astype(np.uint8)


def encode(x, rule="floor", ties="even", zero="signed", divisor=None):
    """(codes `[..., n]`, one a byte; scales `[..., n / 32]`) of finite values `[..., n]`.

    Args:
        divisor: function of the scale bytes, to model encoders that divide by something else than they store.
    """
    blocks = np.asarray(x).astype(np.float64).reshape(-1, 32)
    scales = scale_bytes(np.abs(blocks).max(axis=1), rule)
    by = SCALES[scales] if divisor is None else divisor(scales)
    codes = [codes_of(part / d[:, None], ties, zero) for part, d in _pieces(blocks, by)]
    shape = np.shape(x)
    return np.concatenate(codes).reshape(shape), scales.reshape(*shape[:-1], shape[-1] // 32)


def _pieces(*arrays, rows=1 << 14):
    for i in range(0, len(arrays[0]), rows):
        yield [a[i : i + rows] for a in arrays]


def decode(codes, scales):
    """float64 values of unpacked codes `[..., n]`; scale byte 255 is NaN (section 5.1)."""
    factor = np.append(SCALES, np.nan)[scales]
    return VALUES[codes] * np.repeat(factor, 32, axis=-1)


def pack(codes):
    """Bytes of unpacked codes: element 2j low, 2j + 1 high."""
    return (codes[..., 0::2] + 16 * codes[..., 1::2]).astype(np.uint8)

"""Every element encoding as a list of values, and the nearest of them by measuring the distance to each.

From OCP Microscaling Formats (MX) v1.0, section 5.3, OCP 8-bit Floating Point (OFP8) v1.0, section 5, and QLoRA (arXiv
2305.14314), appendix E. float64 holds every value and, between neighbours, every distance exactly. NumPy only.
"""

import numpy as np

from tests.oracles.blocks_by_hand import NF4

FLOATS = {"e2m1": (2, 1, 1), "e2m3": (2, 3, 1), "e3m2": (3, 2, 3), "e4m3": (4, 3, 7), "e5m2": (5, 2, 15)}  # E, M, bias


def values(kind):
    """float64 value of every code; NaN and infinity where OFP8 has them."""
    if kind == "nf4":
        return NF4.astype(np.float64)
    if kind not in FLOATS:
        bits = 8 if kind == "mxint8" else int(kind[-1])
        code = np.arange(1 << bits)
        signed = code if kind.startswith("uint") else np.where(code >= 1 << (bits - 1), code - (1 << bits), code)
        return signed / 64 if kind == "mxint8" else signed.astype(np.float64)
    ebits, mbits, bias = FLOATS[kind]
    found = []
    for code in range(1 << (1 + ebits + mbits)):
        sign, exponent, mantissa = (
            code >> (ebits + mbits),
            code >> mbits & ((1 << ebits) - 1),
            code & ((1 << mbits) - 1),
        )
        value = (mantissa + (2**mbits if exponent else 0)) * 2.0 ** (max(exponent, 1) - bias - mbits)
        if kind == "e5m2" and exponent == 31:
            value = np.nan if mantissa else np.inf
        if kind == "e4m3" and (exponent, mantissa) == (15, 7):
            value = np.nan
        found.append(-value if sign else value)
    return np.array(found)


def largest(kind):
    """The largest finite value."""
    return values(kind)[np.isfinite(values(kind))].max()


def nearest(ratios, kind, ties="even", narrow=False):
    """Codes nearest to `ratios` (any shape); a NaN counts as 0. Floats keep the sign of what becomes 0.

    Args:
        ties: even (code, or integer), zero, away (from zero), down, up.
        narrow: leave out the most negative integer.
    """
    v = np.nan_to_num(np.asarray(ratios, np.float64), nan=0.0, posinf=1e300, neginf=-1e300)
    value = values(kind)
    usable = np.isfinite(value) & ~((value == value.min()) if narrow and kind.startswith(("int", "mxint")) else False)
    if kind in FLOATS:
        usable &= ~np.signbit(value)  # by magnitude, then the sign
        x = np.abs(v)
    else:
        x = v
    codes = np.flatnonzero(usable)
    x = np.clip(x, value[codes].min(), value[codes].max())
    distance = np.abs(x[..., None] - value[codes])
    best = distance.min(axis=-1, keepdims=True)
    # At most two are nearest. `rank` says which of them is preferred.
    at = value[codes]
    if ties == "even":
        whole = np.round(at * (64 if kind == "mxint8" else 1)) if kind not in (*FLOATS, "nf4") else codes
        rank = whole % 2
    else:
        rank = {"zero": np.abs(at), "away": -np.abs(at), "down": at, "up": -at}[ties]
    rank = np.broadcast_to(rank, distance.shape)
    if kind in FLOATS and ties in ("down", "up"):
        rank = np.where(np.signbit(v)[..., None], -rank, rank)
    pick = codes[np.argmin(np.where(distance == best, rank, np.inf), axis=-1)]
    if kind in FLOATS:
        pick = pick + np.signbit(v) * (len(value) // 2)
    return pick.astype(np.uint8)

"""Codes as a little-endian bit stream along the last axis: code j starts at bit j · bits, low bit first.

Whole groups of lcm(bits, 8) bits are packed with shifts on whole arrays; nothing loops over codes.
"""

from math import lcm
from typing import Any

import numpy as np


def pack(codes: Any, bits: int) -> Any:
    """uint8 `[..., n · bits / 8]` of uint8 `codes` `[..., n]`, each below 2^bits; n · bits is a multiple of 8."""
    if bits == 8:
        return codes
    lead, n = codes.shape[:-1], codes.shape[-1]
    if bits == 4:
        return codes[..., 0::2] | codes[..., 1::2] << 4
    per, nbytes = _group(bits, n)
    groups = codes.reshape(*lead, n // per, per)
    word = np.zeros(groups.shape[:-1], np.uint32)
    for j in range(per):
        word |= groups[..., j].astype(np.uint32) << np.uint32(j * bits)
    out = np.empty((*word.shape, nbytes), np.uint8)
    for j in range(nbytes):
        out[..., j] = word >> np.uint32(8 * j) & np.uint32(0xFF)
    return out.reshape(*lead, n * bits // 8)


def unpack(packed: Any, bits: int) -> Any:
    """The inverse of `pack`: uint8 codes `[..., packed · 8 / bits]`."""
    if bits == 8:
        return packed
    lead, nbytes = packed.shape[:-1], packed.shape[-1]
    n = nbytes * 8 // bits
    if bits == 4:
        out = np.empty((*lead, n), np.uint8)
        out[..., 0::2] = packed & 15
        out[..., 1::2] = packed >> 4
        return out
    per, group = _group(bits, n)
    groups = packed.reshape(*lead, n // per, group)
    word = np.zeros(groups.shape[:-1], np.uint32)
    for j in range(group):
        word |= groups[..., j].astype(np.uint32) << np.uint32(8 * j)
    out = np.empty((*word.shape, per), np.uint8)
    for j in range(per):
        out[..., j] = word >> np.uint32(j * bits) & np.uint32((1 << bits) - 1)
    return out.reshape(*lead, n)


def _group(bits: int, n: int) -> tuple[int, int]:
    """(codes, bytes) of the smallest group that fills whole bytes: 4 in 3 for 6 bits, 8 in 3 for 3, 4 in 1 for 2."""
    whole = lcm(bits, 8)
    per, nbytes = whole // bits, whole // 8
    if n % per:
        raise ValueError(f"{n} codes of {bits} bits do not fill whole bytes")
    return per, nbytes

"""Codes as a little-endian bit stream along the last axis: code j starts at bit j · bits, low bit first.

Whole machine words of codes, one a byte, are squeezed together or spread apart by shifts: arithmetic on whole arrays of
words, nothing that loops over codes. A word holds 2, 4 or 8 codes and becomes 1 or 3 bytes.
"""

from typing import Any, Final

import numpy as np

# Bits of a code → (the word that holds a byte of each code of a group, bytes of the packed group).
_WORDS: Final = {2: (np.uint32, 1), 3: (np.uint64, 3), 4: (np.uint16, 1), 6: (np.uint32, 3)}


def pack(codes: Any, bits: int) -> Any:
    """uint8 `[..., n · bits / 8]` of uint8 `codes` `[..., n]`, each below 2^bits; n · bits is a multiple of 8.

    Raises:
        ValueError: codes that do not fill whole bytes.
    """
    if bits == 8:
        return codes
    *lead, n = codes.shape
    word, nbytes = _group(bits, n)
    spread = np.ascontiguousarray(codes).view(word)
    width = 8
    squeezed = spread
    while width < 8 * word.itemsize:  # neighbours of `width` bits meet; each has `used` bits in it
        used = width * bits // 8
        low = word.type(_fields(word.itemsize * 8, 2 * width, used))
        squeezed = (squeezed & low) | (squeezed >> word.type(width - used) & word.type(int(low) << used))
        width *= 2
    if nbytes == 1:
        return squeezed.astype(np.uint8)
    out = np.empty((*lead, n * bits // 8), np.uint8)
    octets = squeezed.view(np.uint8)
    for j in range(nbytes):
        out[..., j::nbytes] = octets[..., j :: word.itemsize]
    return out


def unpack(packed: Any, bits: int) -> Any:
    """The inverse of `pack`: uint8 codes `[..., packed · 8 / bits]`, contiguous unless they are `packed` itself."""
    if bits == 8:
        return packed
    *lead, size = packed.shape
    n = size * 8 // bits
    word, nbytes = _group(bits, n)
    if nbytes == 1:
        spread = packed.astype(word, order="C")
    else:
        spread = np.zeros((*lead, size // nbytes), word)
        octets = spread.view(np.uint8)
        for j in range(nbytes):
            octets[..., j :: word.itemsize] = packed[..., j::nbytes]
    width = 8 * word.itemsize
    while width > 8:  # halves move apart
        width //= 2
        used = width * bits // 8
        low = word.type(_fields(word.itemsize * 8, 2 * width, used))
        upper = spread << word.type(width - used)
        upper &= word.type(int(low) << width)
        spread &= low
        spread |= upper
    return spread.view(np.uint8).reshape(*lead, n)


def _fields(total: int, every: int, used: int) -> int:
    """`used` one bits at the bottom of each `every` bits of `total`."""
    return sum(((1 << used) - 1) << at for at in range(0, total, every))


def _group(bits: int, n: int) -> tuple[Any, int]:
    """(word of the smallest group of codes that fills whole bytes, its bytes when packed)."""
    word, nbytes = _WORDS[bits]
    if n % (nbytes * 8 // bits):
        raise ValueError(f"{n} codes of {bits} bits do not fill whole bytes")
    return np.dtype(word), nbytes

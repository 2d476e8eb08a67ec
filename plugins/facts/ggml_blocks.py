"""Values of ggml's blocks that are structs: the k-quants, Q5_0, Q5_1 and the non-linear 4-bit types.

Most GGUF files are in these types. Their scales are quantized too, some in six bits strewn over several bytes, so what
a block holds is taken apart and multiplied out to F32, in ggml's order of operations. Blocks: the structs of
ggml-common.h, and `dequantize_row_…` of ggml-quants.c (ggml 0.9). A tile of blocks at a time is decoded, whole bytes
and words at once, into the array that is returned.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

SUPER = 256  # QK_K: elements of a super-block, which has scales of its own for groups of 16 or 32
TILE_ELEMS = 1 << 16  # with its codes what is decoded at once stays in the cache
# kvalues_iq4nl of ggml-common.h
IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)

Codes = tuple[Any, Any, Any]
"""Integers [n, block], their factors [n, groups] and what is subtracted from the products, [n, groups] or None."""


def decode(kind: str, rows: Any, elems: int, nbytes: int) -> Any:
    """Rows of blocks, uint8 [..., n], as F32 values [..., n / nbytes · elems].

    Args:
        kind: a key of `DECODERS`.
        elems, nbytes: of a block.
    """
    take = DECODERS[kind]
    rows = np.ascontiguousarray(rows)
    blocks = rows.reshape(-1, nbytes)
    out = np.empty((len(blocks), elems), np.float32)
    step = TILE_ELEMS // elems
    with np.errstate(invalid="ignore", over="ignore"):  # a scale may be any bits: Inf times 0 is NaN
        for start in range(0, len(blocks), step):
            codes, factors, less = take(blocks[start : start + step])
            tile = out[start : start + step].reshape(*factors.shape, -1)
            tile[...] = codes.reshape(tile.shape)
            tile *= factors[..., None]
            if less is not None:
                tile -= less[..., None]
    return out.reshape(*rows.shape[:-1], rows.shape[-1] // nbytes * elems)


def _half(blocks: Any, at: int) -> Any:
    """The fp16 number at byte `at` of every block, as F32 [n, 1]."""
    return _bytes(blocks, at, 2).view(np.float16).astype(np.float32)


def _bytes(blocks: Any, at: int, size: int) -> Any:
    """Bytes `at` to `at + size` of every block, contiguous."""
    return np.ascontiguousarray(blocks[:, at : at + size])


def _fields(raw: Any, bits: int, unit: int) -> Any:
    """The fields of `bits` bits of every byte, from the lowest: [n, k · unit] → [n, k, 8 / bits, unit].

    `unit` bytes, all their lowest fields first, then all their next ones: how ggml lays codes out. Eight bytes at once.
    """
    words = raw.view("<u8")
    mask = np.uint64(0x0101010101010101 * ((1 << bits) - 1))
    out = np.empty((len(raw), raw.shape[1] // unit, 8 // bits, unit), np.uint8)
    lanes = out.view(f"V{unit}")
    for i in range(8 // bits):
        lanes[:, :, i] = ((words >> np.uint64(bits * i)) & mask).view(f"V{unit}")[..., None]
    return out


def _signed(codes: Any, offset: int) -> Any:
    """Unsigned codes in place less `offset`, as int8."""
    codes -= np.uint8(offset)
    return codes.view(np.int8)


def _five_bits(blocks: Any, at: int) -> Any:
    """The codes of Q5_0 and Q5_1 [n, 32]: at `at` four bytes of fifth bits, then sixteen of nibbles."""
    codes = _fields(_bytes(blocks, at + 4, 16), 4, 16).reshape(-1, 32)
    codes |= np.unpackbits(_bytes(blocks, at, 4), axis=-1, bitorder="little") << np.uint8(4)
    return codes


def _q5_0(blocks: Any) -> Codes:
    return _signed(_five_bits(blocks, 2), 16), _half(blocks, 0), None


def _q5_1(blocks: Any) -> Codes:
    return _five_bits(blocks, 4), _half(blocks, 0), -_half(blocks, 2)


def _q2_k(blocks: Any) -> Codes:
    scales = _bytes(blocks, 0, 16)
    codes = _fields(_bytes(blocks, 16, 64), 2, 32)
    return codes, _half(blocks, 80) * (scales & 0x0F), _half(blocks, 82) * (scales >> 4)


def _q3_k(blocks: Any) -> Codes:
    """A set bit of the mask (the first 32 bytes) means that four is *not* subtracted."""
    codes = _fields(_bytes(blocks, 32, 64), 2, 32).reshape(-1, SUPER)
    codes |= _fields(_bytes(blocks, 0, 32), 1, 32).reshape(-1, SUPER) << np.uint8(2)
    low, high = _bytes(blocks, 96, 8), _bytes(blocks, 104, 4)  # scales of six bits: four of them here, two there
    scales = np.concatenate([low & 0x0F, low >> 4], axis=1)
    scales |= np.concatenate([(high >> shift) & 3 for shift in (0, 2, 4, 6)], axis=1) << np.uint8(4)
    return _signed(codes, 4), _half(blocks, 108) * _signed(scales, 32), None


def _six_bit_scales(blocks: Any) -> tuple[Any, Any]:
    """Factors and minima of Q4_K and Q5_K, each [n, 8]: two fp16 numbers times six bits each, from twelve bytes."""
    raw = _bytes(blocks, 4, 12)
    first, second, rest = raw[:, :4], raw[:, 4:8], raw[:, 8:]
    scales = np.concatenate([first & 0x3F, (rest & 0x0F) | ((first >> 2) & 0x30)], axis=1)
    minima = np.concatenate([second & 0x3F, (rest >> 4) | ((second >> 2) & 0x30)], axis=1)
    return _half(blocks, 0) * scales, _half(blocks, 2) * minima


def _q4_k(blocks: Any) -> Codes:
    return _fields(_bytes(blocks, 16, 128), 4, 32), *_six_bit_scales(blocks)


def _q5_k(blocks: Any) -> Codes:
    codes = _fields(_bytes(blocks, 48, 128), 4, 32).reshape(-1, SUPER)
    codes |= _fields(_bytes(blocks, 16, 32), 1, 32).reshape(-1, SUPER) << np.uint8(4)
    return codes, *_six_bit_scales(blocks)


def _q6_k(blocks: Any) -> Codes:
    codes = _fields(_bytes(blocks, 0, 128), 4, 64).reshape(-1, SUPER)
    codes |= _fields(_bytes(blocks, 128, 64), 2, 32).reshape(-1, SUPER) << np.uint8(4)
    return _signed(codes, 32), _half(blocks, 208) * _bytes(blocks, 192, 16).view(np.int8), None


def _q8_k(blocks: Any) -> Codes:
    """An fp32 factor and int8 codes; the sums of their groups, which follow, say nothing new."""
    return _bytes(blocks, 4, SUPER).view(np.int8), _bytes(blocks, 0, 4).view("<f4"), None


def _iq4_nl(blocks: Any) -> Codes:
    return IQ4_VALUES[_fields(_bytes(blocks, 2, 16), 4, 16)], _half(blocks, 0), None


def _iq4_xs(blocks: Any) -> Codes:
    """Eight scales of six bits: two bits each in two bytes, then four bits each in four."""
    high = _bytes(blocks, 2, 2).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)
    low = np.stack([_bytes(blocks, 4, 4) & 0x0F, _bytes(blocks, 4, 4) >> 4], axis=-1).reshape(-1, 8)
    scales = low | ((high & 3) << 4).astype(np.uint8)
    return IQ4_VALUES[_fields(_bytes(blocks, 8, 128), 4, 16)], _half(blocks, 0) * _signed(scales, 32), None


DECODERS: dict[str, Callable[[Any], Codes]] = {
    "Q5_0": _q5_0, "Q5_1": _q5_1, "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
    "Q8_K": _q8_k, "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs,
}  # fmt: skip

"""Bytes of ggml's structs (ggml-common.h), the inverse of `plugins.facts.ggml_blocks`: of codes, scales and minima.

Which codes and scales those are is `plugins.kernels.codecs.superblocks`' business.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from plugins.kernels.codecs.superblocks import Blocks

# Where of a block the bytes of codes are, which hold nothing else.
CODES = {
    "Q2_K": slice(16, 80), "Q3_K": slice(0, 96), "Q4_K": slice(16, 144), "Q5_K": slice(16, 176), "Q6_K": slice(0, 192),
    "Q5_0": slice(2, 22), "Q5_1": slice(4, 24), "IQ4_NL": slice(2, 18),
}  # fmt: skip
GROUPS = {"Q2_K": 16, "Q3_K": 16, "Q4_K": 8, "Q5_K": 8, "Q6_K": 16}


def blocks_of(kind: str, b: Any) -> Any:
    """Blocks (`superblocks.Blocks`) as the bytes of `kind`, one of `ENCODERS`: uint8 [n, bytes of a block]."""
    return np.concatenate(ENCODERS[kind](b), axis=1)


def with_codes(kind: str, blocks: Any, codes: Any) -> Any:
    """The same blocks, uint8 [n, bytes of a block], with other codes, int8 [n, elements of a block]."""
    none, groups = np.zeros(len(codes), np.float16), np.zeros((len(codes), GROUPS.get(kind, 0)), np.int16)
    found = np.array(blocks)
    found[:, CODES[kind]] = blocks_of(kind, Blocks(codes, groups, none, groups, none))[:, CODES[kind]]
    return found


def _half(factor: Any) -> Any:
    return factor[:, None].view(np.uint8)


def _laid(codes: Any, bits: int, unit: int) -> Any:
    """Codes [n, k] of `bits` bits as bytes, the inverse of `ggml_blocks._fields`."""
    lanes = codes.reshape(len(codes), -1, 8 // bits, unit)
    out = np.zeros((len(codes), lanes.shape[1], unit), np.uint8)
    for i in range(8 // bits):
        out |= (lanes[:, :, i] & np.uint8((1 << bits) - 1)) << np.uint8(bits * i)
    return out.reshape(len(codes), -1)


def _codes(b: Any, offset: int = 0) -> Any:
    return (b.codes + np.int8(offset)).view(np.uint8)


def _q2_k(b: Any) -> list[Any]:
    scales = (b.scales | (b.minima << 4)).astype(np.uint8)
    return [scales, _laid(_codes(b), 2, 32), _half(b.factor), _half(b.second)]


def _q3_k(b: Any) -> list[Any]:
    codes, s = _codes(b, 4), (b.scales + 32).astype(np.uint8)
    high = np.zeros((len(s), 4), np.uint8)
    for i in range(4):
        high |= (s[:, 4 * i : 4 * i + 4] >> 4) << np.uint8(2 * i)
    low = (s[:, :8] & 0x0F) | ((s[:, 8:] & 0x0F) << 4)
    return [_laid(codes >> 2, 1, 32), _laid(codes, 2, 32), low, high, _half(b.factor)]


def _six_bit_scales(b: Any) -> list[Any]:
    s, m = b.scales.astype(np.uint8), b.minima.astype(np.uint8)
    first = s[:, :4] | ((s[:, 4:] & 0x30) << 2)
    second = m[:, :4] | ((m[:, 4:] & 0x30) << 2)
    return [_half(b.factor), _half(b.second), first, second, (s[:, 4:] & 0x0F) | ((m[:, 4:] & 0x0F) << 4)]


def _q4_k(b: Any) -> list[Any]:
    return [*_six_bit_scales(b), _laid(_codes(b), 4, 32)]


def _q5_k(b: Any) -> list[Any]:
    return [*_six_bit_scales(b), _laid(_codes(b) >> 4, 1, 32), _laid(_codes(b), 4, 32)]


def _q6_k(b: Any) -> list[Any]:
    codes = _codes(b, 32)
    scales = b.scales.astype(np.int8).view(np.uint8)
    return [_laid(codes, 4, 64), _laid(codes >> 4, 2, 32), scales, _half(b.factor)]


def _five_bits(codes: Any) -> list[Any]:
    """The fifth bits of 32 codes in a word, then nibbles."""
    return [np.packbits(codes >> 4 & 1, axis=-1, bitorder="little"), _laid(codes, 4, 16)]


def _q5_0(b: Any) -> list[Any]:
    return [_half(b.factor), *_five_bits(_codes(b, 16))]


def _q5_1(b: Any) -> list[Any]:
    return [_half(b.factor), _half(-b.second), *_five_bits(_codes(b))]


def _iq4_nl(b: Any) -> list[Any]:
    return [_half(b.factor), _laid(_codes(b), 4, 16)]


ENCODERS: dict[str, Callable[[Any], list[Any]]] = {
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
    "Q5_0": _q5_0, "Q5_1": _q5_1, "IQ4_NL": _iq4_nl,
}  # fmt: skip

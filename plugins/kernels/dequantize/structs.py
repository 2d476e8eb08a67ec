"""ggml's blocks that are structs, inside a traced JAX program: what `plugins.facts.ggml_blocks` does, in jnp.

No product of a factor (fp16), a scale (8 bits) and a code (6 bits) is below 2^-24 but 0, and with a minimum to take off
(6 bits and 5) all of it is exact in float32 but the difference: flushing and fusing devices give the same bits.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.tensors.scheme import STRUCTS
from plugins.facts.ggml_blocks import IQ4_VALUES

Codes = tuple[Any, Any, Any]
"""Integers [..., elems], their factors [..., groups] and what is subtracted, [..., groups] or None."""


def decode(kind: str, packed: Any) -> Any:
    """float32 `[..., n]` of the bytes of blocks, uint8 `[..., n / elems * nbytes]`.

    Args:
        kind: a key of `STRUCTS`.
    """
    elems, nbytes = STRUCTS[kind]
    blocks = packed.reshape(*packed.shape[:-1], packed.shape[-1] // nbytes, nbytes)
    codes, factors, less = _TAKE[kind](blocks)
    found = codes.astype(jnp.float32).reshape(*factors.shape, elems // factors.shape[-1]) * factors[..., None]
    if less is not None:
        found = found - less[..., None]
    return found.reshape(*packed.shape[:-1], packed.shape[-1] // nbytes * elems)


def _half(blocks: Any, at: int) -> Any:
    """The fp16 number at byte `at` of every block, as float32 [..., 1]."""
    return jax.lax.bitcast_convert_type(blocks[..., at : at + 2], jnp.float16).astype(jnp.float32)[..., None]


def _fields(raw: Any, bits: int, unit: int) -> Any:
    """As `plugins.facts.ggml_blocks`: all lowest fields of `unit` bytes, then all their next ones; [..., codes]."""
    lanes = raw.reshape(*raw.shape[:-1], raw.shape[-1] // unit, 1, unit)
    places = np.arange(0, 8, bits, dtype=np.uint8).reshape(*[1] * raw.ndim, -1, 1)
    return ((lanes >> places) & np.uint8((1 << bits) - 1)).reshape(*raw.shape[:-1], raw.shape[-1] * 8 // bits)


def _less(codes: Any, offset: int) -> Any:
    return codes.astype(jnp.int8) - np.int8(offset)


def _scaled(factor: Any, scales: Any) -> Any:
    return factor * scales.astype(jnp.float32)


def _five_bits(blocks: Any, at: int) -> Any:
    """Four bytes of fifth bits, then sixteen of nibbles."""
    return _fields(blocks[..., at + 4 : at + 20], 4, 16) | _fields(blocks[..., at : at + 4], 1, 1) << np.uint8(4)


def _q5_0(b: Any) -> Codes:
    return _less(_five_bits(b, 2), 16), _half(b, 0), None


def _q5_1(b: Any) -> Codes:
    return _five_bits(b, 4), _half(b, 0), -_half(b, 2)


def _iq4_nl(b: Any) -> Codes:
    return jnp.take(jnp.asarray(IQ4_VALUES), _fields(b[..., 2:], 4, 16).astype(jnp.int32)), _half(b, 0), None


def _q2_k(b: Any) -> Codes:
    scales = b[..., :16]
    codes = _fields(b[..., 16:80], 2, 32)
    return codes, _scaled(_half(b, 80), scales & np.uint8(15)), _scaled(_half(b, 82), scales >> np.uint8(4))


def _q3_k(b: Any) -> Codes:
    codes = _fields(b[..., 32:96], 2, 32) | _fields(b[..., :32], 1, 32) << np.uint8(2)
    scales = _fields(b[..., 96:104], 4, 8) | _fields(b[..., 104:108], 2, 4) << np.uint8(4)
    return _less(codes, 4), _scaled(_half(b, 108), _less(scales, 32)), None


def _six_bit_scales(b: Any) -> tuple[Any, Any]:
    first, second, rest = b[..., 4:8], b[..., 8:12], b[..., 12:16]
    six, low, two = np.uint8(0x3F), np.uint8(0x0F), np.uint8(0x30)
    scales = jnp.concatenate([first & six, (rest & low) | ((first >> 2) & two)], axis=-1)
    minima = jnp.concatenate([second & six, (rest >> 4) | ((second >> 2) & two)], axis=-1)
    return _scaled(_half(b, 0), scales), _scaled(_half(b, 2), minima)


def _q4_k(b: Any) -> Codes:
    return _fields(b[..., 16:144], 4, 32), *_six_bit_scales(b)


def _q5_k(b: Any) -> Codes:
    codes = _fields(b[..., 48:176], 4, 32) | _fields(b[..., 16:48], 1, 32) << np.uint8(4)
    return codes, *_six_bit_scales(b)


def _q6_k(b: Any) -> Codes:
    codes = _fields(b[..., :128], 4, 64) | _fields(b[..., 128:192], 2, 32) << np.uint8(4)
    scales = jax.lax.bitcast_convert_type(b[..., 192:208], jnp.int8)
    return _less(codes, 32), _scaled(_half(b, 208), scales), None


_TAKE: dict[str, Callable[[Any], Codes]] = {
    "q2_k": _q2_k, "q3_k": _q3_k, "q4_k": _q4_k, "q5_k": _q5_k, "q6_k": _q6_k,
    "q5_0": _q5_0, "q5_1": _q5_1, "iq4_nl": _iq4_nl,
}  # fmt: skip

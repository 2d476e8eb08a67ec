"""Scales of the blocks of a tile, and values divided by them: vectorized, float32 operation by float32 operation."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs import scales
from plugins.kernels.codecs.blocks import spread
from plugins.kernels.codecs.elements import element
from plugins.kernels.codecs.mx import E8M0_BIAS, E8M0_NAN
from plugins.kernels.codecs.rounding import encode
from plugins.kernels.quantize.recipe import Recipe

_FEW = 64  # blocks worth a loop


@dataclass(slots=True)
class Found:
    """What a tile's blocks share; arrays `[down, 1, across, 1]`.

    Attributes:
        stored: scales as stored.
        total: float32 that a code is multiplied by when decoded.
        divisor: float32 that a value is divided by (`divide`), or multiplied by (`reciprocal`).
        zeros: zero points or minima as stored, or None.
        minimum: float32 subtracted from values first, or None.
        poisoned: which blocks have no values, or None when all do.
    """

    stored: Any
    total: Any
    divisor: Any
    zeros: Any = None
    minimum: Any = None
    poisoned: Any = None


def block_scales(blocks: Any, ends: Any, scheme: Scheme, recipe: Recipe, second: Any, weights: Any = None) -> Found:
    """The scales of a `[down, r, across, e]` tile with these extremes.

    Args:
        blocks, ends, second: see `candidates`.
        weights: float64 that the squared errors of columns are multiplied by in a search, `[1, 1, across, e]`, or None.
    """
    poisoned = _poisoned(ends)
    options = candidates(blocks, ends, scheme, recipe, second)
    best = options[0] if len(options) == 1 else _least_error(blocks, options, scheme, recipe, weights)
    best.poisoned = poisoned
    if poisoned is not None and best.zeros is not None:
        best.zeros = np.where(poisoned, best.zeros.dtype.type(0), best.zeros)
    return best


def candidates(blocks: Any, ends: Any, scheme: Scheme, recipe: Recipe, second: Any) -> list[Found]:
    """The scales that a search tries, the usual one first: without a search that alone.

    Args:
        blocks: values of a `[down, r, across, e]` tile; None for one block that is too large to hold, whose rule needs
            extremes only.
        ends: (low, high), and without blocks for `signed` the first value of largest magnitude.
        second: the matrix's stored second-level scale, or None.
    """
    poisoned = _poisoned(ends)
    if scheme.scale == "e8m0":
        base = scales.e8m0_bytes(np.maximum(np.abs(ends[0]), np.abs(ends[1])), scheme.element, recipe.scale_rule)
        found = [base]
        for k in range(1, recipe.search_steps + 1) if recipe.search != "none" else ():
            for step in (-k, k):
                moved = np.clip(base.astype(np.int16) + step, 0, E8M0_NAN - 1).astype(np.uint8)
                found.append(np.where(poisoned, base, moved) if poisoned is not None else moved)
        return [_power(c, recipe) for c in found]
    if recipe.scale_rule == "signed":
        ends = ends if blocks is None else (*ends, _first_largest(blocks, ends))
    if scheme.zero == "int":
        ends = (np.minimum(ends[0], 0), np.maximum(ends[1], 0))
    if scheme.zero == "min_f16" and blocks is not None:
        ends = (_first_zero(blocks, ends[0]), ends[1])
    raw = scales.unrounded(ends, scheme, recipe.scale_rule)
    if scheme.second == "f32":
        raw = raw / second
    elif scheme.second == "inverse_f32":
        raw = raw * second
    if poisoned is not None:
        raw = np.where(poisoned, np.float32(np.nan), raw)
    factors = (1.0, *recipe.search_grid) if recipe.search != "none" else (1.0,)
    return [_real(raw if f == 1 else raw * np.float32(f), ends, scheme, recipe, second) for f in factors]


def _poisoned(ends: Any) -> Any:
    """Which blocks have a value that is not finite, or None when none has."""
    finite = np.isfinite(np.maximum(np.abs(ends[0]), np.abs(ends[1])))
    return None if finite.all() else ~finite


def _power(byte: Any, recipe: Recipe) -> Found:
    total = scales.powers()[byte]
    used = byte
    if recipe.tiny == "torchao":
        used = np.where(byte == 0, E8M0_BIAS if recipe.scale_rule == "rceil" else 1, byte)
    reciprocal = np.ldexp(np.float32(1), E8M0_BIAS - used.astype(np.int32)).astype(np.float32)
    return Found(byte, total, reciprocal)


def _real(raw: Any, ends: Any, scheme: Scheme, recipe: Recipe, second: Any) -> Found:
    stored = scales.store(raw, scheme, recipe.least_scale, recipe.zero_scale)
    value = stored.astype(np.float32)
    total = scales.combined(value, second, scheme)
    used = raw if recipe.codes_from == "unrounded" else total
    if recipe.quotient == "reciprocal":
        inverse = np.float32(1) / second if scheme.second == "f32" else np.float32(1) if second is None else second
        divisor = np.where(used == 0, np.float32(0), inverse / (value if second is not None else used))
    else:
        divisor = np.where(used == 0, np.float32(np.inf), used)
    found = Found(stored, total, divisor.astype(np.float32))
    if scheme.zero == "int":
        e = element(scheme.element)
        half = np.float32(1 << (e.bits - 1))  # compressed-tensors' zero points are those of signed codes
        point = np.rint(np.where(value == 0, np.float32(0), -half - ends[0] / value) + half)
        found.zeros = np.nan_to_num(np.clip(point, 0, e.most)).astype(np.uint8)
        found.zeros = np.where(value == 0, np.uint8(0), found.zeros)
        if recipe.zero_block == "middle":
            instead = np.where(ends[0] < 0, np.uint8(e.most), np.uint8(half))
            found.zeros = np.where(raw == 0, instead, found.zeros)
    elif scheme.zero == "min_f16":
        found.zeros = ends[0].astype(np.float16)
        found.minimum = ends[0] if recipe.codes_from == "unrounded" else found.zeros.astype(np.float32)
    return found


def quotients(v: Any, found: Found, scheme: Scheme, recipe: Recipe) -> Any:
    """`v`, the contiguous float32 values of blocks, turned into what the elements have to come near; no NaN."""
    if found.minimum is not None:
        spread(np.subtract, v, found.minimum)
    multiply = scheme.scale == "e8m0" or recipe.quotient == "reciprocal"
    spread(np.multiply if multiply else np.divide, v, found.divisor)
    if found.poisoned is not None or (multiply and not np.isfinite(found.divisor).all()):
        v[np.isnan(v)] = 0
    if scheme.zero == "int":
        half = np.float32(1 << (element(scheme.element).bits - 1))
        spread(np.add, v, found.zeros.astype(np.float32) - half)
        np.clip(v, -half, half - 1, out=v)
        if recipe.ties == "even" and not recipe.stochastic:
            np.rint(v, out=v)
        np.add(v, half, out=v)
    return v


def decoded(codes: Any, total: Any, zeros: Any, scheme: Scheme) -> Any:
    """float32 values of unpacked codes under float32 factors, broadcast: each operation rounded once."""
    y = element(scheme.element).values[codes]
    if scheme.zero == "int":
        y = y - zeros.astype(np.float32)
    y = y * total
    if scheme.zero == "min_f16":
        y = y + zeros.astype(np.float32)
    return y


def _first_zero(blocks: Any, low: Any) -> Any:
    """`low` with the sign of the first zero where it is zero: what a loop over `v < low` finds."""
    at = np.argwhere(low == 0)
    if len(at):
        low = low.copy()
    for d, _, a, _ in at:
        block = blocks[d, :, a].ravel()
        low[d, 0, a, 0] = block[np.argmax(block == 0)]
    return low


def _first_largest(blocks: Any, ends: Any) -> Any:
    """The first value of largest magnitude of each block."""
    low, high = ends
    found = np.where(high > -low, high, low)
    tied = np.argwhere(high == -low)  # both signs are there: who is first?
    for d, _, a, _ in tied if len(tied) < _FEW else ():
        block = blocks[d, :, a].ravel()
        found[d, 0, a, 0] = block[np.argmax(np.abs(block))]
    if len(tied) < _FEW:
        return found
    down, r, across, e = blocks.shape
    flat = blocks.transpose(0, 2, 1, 3).reshape(down, across, r * e)
    at = np.argmax(np.abs(flat), axis=-1, keepdims=True)
    return np.take_along_axis(flat, at, axis=-1).reshape(down, 1, across, 1)


def _least_error(blocks: Any, options: list[Found], scheme: Scheme, recipe: Recipe, weights: Any) -> Found:
    """For each block the option with the least sum of squared errors; the earlier of equals, and those that are not
    finite are equal."""
    e = element(scheme.element)
    best, least = options[0], None
    for option in options:
        codes = encode(e, quotients(blocks.copy(), option, scheme, recipe), recipe.ties, recipe.zero, recipe.is_narrow)
        error = blocks.astype(np.float64) - decoded(codes, option.total, option.zeros, scheme)
        down, r, across, n = error.shape
        square = np.square(error) if weights is None else np.square(error) * weights
        flat = square.transpose(0, 2, 1, 3).reshape(down, across, r * n)
        # A running sum adds in order, whatever the array's shape: the same block always has the same error.
        total = np.cumsum(flat, axis=-1)[..., -1].reshape(down, 1, across, 1)
        total[np.isnan(total)] = np.inf
        if least is None:
            least = total
            continue
        better = total < least
        least = np.where(better, total, least)
        best = merged(better, option, best)
    return best


def merged(better: Any, option: Found, best: Found) -> Found:
    """Of each block the scale of `option` where it is `better`, else that of `best`."""
    parts = {k: getattr(best, k) for k in ("stored", "total", "divisor", "zeros", "minimum")}
    return Found(**{k: None if a is None else np.where(better, getattr(option, k), a) for k, a in parts.items()})

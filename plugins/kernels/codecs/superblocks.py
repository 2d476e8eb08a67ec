"""Codes and scales of ggml's structs: of super-blocks, groups of a row whose scales are small integers under shared
fp16 factors; and of blocks of 32 with an fp16 scale of their own, which rows get that no super-block divides.

A value decodes as factor · scale · code, or that less second factor · minimum. What is minimized is the sum of
weight · error². A grid of ranges is tried for every group, each candidate's scale (and minimum) being the weighted
least-squares fit to its codes, as `make_qx_quants` and `make_qkx2_quants` of ggml-quants.c (ggml 0.25) have it, whose
grids these are but for Q5_1 and IQ4_NL; then codes and fit are brought to agree (`REFITS`). The groups' scales are
rounded together, neighbours tried, and the factors fitted to all of a block (`SETTLED`), which is not done there.

The factors of a super-block are then multiplied by what makes Σ weight · value · decoded value what Σ weight · value²
is (`_unshrunk`). Least squares leave it smaller, by 4 % in Q2_K and 1 % in Q3_K, so every matrix multiplies by less
than it should: squares grow by it, and the KL of two Llamas of width 512 falls by 20 % (q2_k) and 3 to 12 % (q3_k_m).
From 4 bits on it changes little.

Weights: importance · sqrt(2 · mean square of the block + x²), as `quantize_row_q4_K_impl` has them, with 8 for 2 in the
kinds of 2 and 3 bits. Where importance is not known these take it to be 1, and the others root mean square of the
group + |x|, as `quantize_row_q4_K_ref`.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.errors import ValueRangeError
from plugins.facts.ggml_blocks import IQ4_VALUES

SUPER = 256  # QK_K
TILE = 1 << 16  # elements at once: their candidates stay in the cache
REFITS = (None, None)  # after the grid: codes of the best fit so far, and their own fit
MOST_GROWN = 2  # times: factors of super-blocks that hold less than half of their values stay as they were fitted
SETTLED = 2  # times that the factors of super-blocks are fitted to what they gave


@dataclass(frozen=True, slots=True)
class Layout:
    """A kind of super-block.

    Attributes:
        group: elements that share a scale.
        least, most: codes.
        least_scale, most_scale: the integers that scales (and minima) are; 0: a block is one group, its scale in fp16.
        minima: groups have a minimum, which is not above 0.
        grid: factors of the range of codes that are tried.
        book: int8 `[16]`, ascending, what codes stand for; None: for themselves.
    """

    group: int
    least: int
    most: int
    least_scale: int
    most_scale: int
    minima: bool
    grid: tuple[float, ...]
    book: Any = None

    @property
    def size(self) -> int:
        """Elements of a block."""
        return SUPER if self.most_scale else self.group


def _grid(most: int, start: float, step: float, count: int) -> tuple[float, ...]:
    """The plain range, and `count` + 1 wider or narrower ones."""
    return (float(most), *(most + start + step * i for i in range(count + 1)))


LAYOUTS = {
    "Q2_K": Layout(16, 0, 3, 0, 15, True, _grid(3, -0.5, 0.1, 15)),
    "Q3_K": Layout(16, -4, 3, -32, 31, False, _grid(4, -0.9, 0.1, 18)),
    "Q4_K": Layout(32, 0, 15, 0, 63, True, _grid(15, -1.0, 0.1, 20)),
    "Q5_K": Layout(32, 0, 31, 0, 63, True, _grid(31, -0.5, 0.1, 15)),
    "Q6_K": Layout(16, -32, 31, -128, 127, False, _grid(32, -0.9, 0.1, 18)),
    "Q5_0": Layout(32, -16, 15, 0, 0, False, _grid(16, -0.9, 0.1, 18)),
    "Q5_1": Layout(32, 0, 31, 0, 0, True, _grid(31, -0.9, 0.1, 20)),
    "IQ4_NL": Layout(32, 0, 15, 0, 0, False, (*_grid(127, -21.0, 3.0, 14), *range(-134, -91, 3)), IQ4_VALUES),
}


@dataclass(frozen=True, slots=True)
class Blocks:
    """Codes int8 [n, elements of a block]; scales and minima int16 [n, groups]; factor and second fp16 [n]."""

    codes: Any
    scales: Any
    factor: Any
    minima: Any = None
    second: Any = None


def encode(kind: str, x: Any, importance: Any = None, first: int = 0) -> Blocks:
    """Rows `x` [..., n · elements of a block] as blocks in order.

    Args:
        kind: of `LAYOUTS`.
        importance: mean squares of the inputs that the last axis of `x` meets, [n · elements of a block] or anything
            that broadcasts to the shape of `x`; None: not known.
        first: the flat index of the first value, in what is said of errors.

    Raises:
        ValueError: rows are no whole number of blocks.
        ValueRangeError: a NaN or an infinity, or a factor past fp16; says the flat index.
    """
    layout = LAYOUTS[kind]
    importance = assumed(layout, x.shape[-1]) if importance is None else importance
    size, values = layout.size, np.ascontiguousarray(x, np.float32)
    if values.shape[-1] % size:
        raise ValueError(f"{kind} has blocks of {size} elements, which do not divide rows of {values.shape[-1]}")
    if not np.isfinite(values).all():
        at = int(np.argmin(np.isfinite(values)))
        raise ValueRangeError(f"flat index {first + at}: {values.flat[at]} has no code in {kind}")
    known = None
    if importance is not None:
        known = np.broadcast_to(np.asarray(importance, np.float32), values.shape).reshape(-1, size)
    blocks, many = values.reshape(-1, size), TILE // size
    parts = [
        _tile(layout, blocks[i : i + many], None if known is None else known[i : i + many])
        for i in range(0, max(1, len(blocks)), many)
    ]
    found = Blocks(*(_joined([getattr(p, name) for p in parts]) for name in Blocks.__slots__))
    for name in ("factor", "second"):
        past = getattr(found, name)
        if past is not None and not np.isfinite(past).all():
            raise past_half(first + int(np.argmin(np.isfinite(past))) * size, kind)
    return found


def past_half(at: int, kind: str) -> ValueRangeError:
    """Of the block whose first value has the flat index `at`."""
    return ValueRangeError(f"flat index {at}: a block from there on has a factor past fp16 in {kind}")


def _is_coarse(layout: Layout) -> bool:
    return layout.most - layout.least < 8


def spread_of(layout: Layout) -> float:
    """Times the mean square of a block that is added to squares where importance is known."""
    return 8 if _is_coarse(layout) else 2


def assumed(layout: Layout, n: int) -> Any:
    """The importance of `n` columns of which none is known, fp32 [n]; None: weights are of another kind then."""
    return np.ones(n, np.float32) if _is_coarse(layout) else None


def _joined(parts: list[Any]) -> Any:
    return None if parts[0] is None else np.concatenate(parts)


def _weights(layout: Layout, x: Any, known: Any) -> Any:
    """Weights of errors [n, groups, group]: how far a value matters where nothing, or its importance, is known."""
    groups = x.reshape(len(x), layout.size // layout.group, layout.group)
    if known is not None:
        spread = np.float32(spread_of(layout)) * np.mean(x * x, axis=1, keepdims=True, dtype=np.float32)
        return (known * np.sqrt(spread + x * x)).reshape(groups.shape) + np.float32(1e-30)
    return np.sqrt(np.mean(groups * groups, axis=-1, keepdims=True)) + np.abs(groups) + np.float32(1e-30)


def _tile(layout: Layout, x: Any, known: Any) -> Blocks:
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        w = _weights(layout, x, known)
        g = x.reshape(w.shape)
        scale, low = (_affine if layout.minima else _linear)(layout, g, w)
        return (_settle if layout.most_scale else _alone)(layout, g, w, scale, low)


def _affine(layout: Layout, g: Any, w: Any) -> tuple[Any, Any]:
    """The scale and the minimum (at most 0) of every group, [n, groups]."""
    low, high = np.minimum(g.min(axis=-1), 0), g.max(axis=-1)
    span = np.where(high > low, high - low, np.float32(1))
    sw, sx = w.sum(axis=-1), (w * g).sum(axis=-1)
    best_scale, best_low, least = np.zeros_like(span), low.copy(), np.full_like(span, np.inf)
    for top in (*layout.grid, *REFITS):
        if top is None:  # the codes of the best line so far
            inverse, start = np.where(best_scale > 0, 1 / np.where(best_scale > 0, best_scale, 1), 0), best_low
        else:
            inverse, start = np.float32(top) / span, low
        q = g - start[..., None]
        q *= inverse[..., None]
        np.clip(np.rint(q, out=q), 0, layout.most, out=q)
        wq = w * q
        s1, s2, sxq = wq.sum(axis=-1), (wq * q).sum(axis=-1), (wq * g).sum(axis=-1)
        det = sw * s2 - s1 * s1
        scale = np.where(det > 0, (sw * sxq - sx * s1) / det, 0)
        at = np.where(det > 0, (s2 * sx - s1 * sxq) / det, 0)
        flat = (at > 0) | (det <= 0)  # a minimum above 0 cannot be written: the best line through 0
        scale = np.where(flat, np.where(s2 > 0, sxq / s2, 0), scale)
        at = np.where(flat, 0, at)
        off = q * scale[..., None]  # from the errors themselves: the sums' difference cancels
        off += at[..., None]
        off -= g
        off *= off
        off *= w
        loss = off.sum(axis=-1)
        better = (loss < least) & (scale >= 0)
        best_scale, best_low = np.where(better, scale, best_scale), np.where(better, at, best_low)
        least = np.where(better, loss, least)
    positive = np.float32(0)  # of zeros: which of two a maximum takes is left to NumPy's loops
    return best_scale + positive, best_low + positive


def _linear(layout: Layout, g: Any, w: Any) -> tuple[Any, Any]:
    """The scale of every group, [n, groups]; the value of largest magnitude tends to the most negative code."""
    at = np.argmax(np.abs(g), axis=-1)[..., None]
    end = np.take_along_axis(g, at, axis=-1)[..., 0]
    safe = np.where(end == 0, np.float32(1), end)
    best, most = np.zeros_like(end), np.zeros_like(end)
    for top in (*layout.grid, *REFITS):
        inverse = np.where(best != 0, 1 / np.where(best != 0, best, 1), 0) if top is None else np.float32(-top) / safe
        q = _values(layout, g * inverse[..., None])
        wq = w * q
        s2, sxq = (wq * q).sum(axis=-1), (wq * g).sum(axis=-1)
        scale = np.where(s2 > 0, sxq / s2, 0)
        gain = scale * sxq  # what the codes explain of the weighted squares
        better = gain > most
        best, most = np.where(better, scale, best), np.where(better, gain, most)
    return best, None


def _values(layout: Layout, scaled: Any) -> Any:
    """What the codes nearest to `scaled`, which is overwritten, stand for, float32."""
    if layout.book is None:
        return np.clip(np.rint(scaled, out=scaled), layout.least, layout.most, out=scaled)
    return layout.book.astype(np.float32)[_in_book(layout.book, scaled)]


def _in_book(book: Any, scaled: Any) -> Any:
    """The code nearest to each value, the lower of two."""
    middles = (book[1:].astype(np.float32) + book[:-1].astype(np.float32)) / 2
    return np.searchsorted(middles, scaled)


def nearest(layout: Layout, x: Any, unit: Any, less: Any) -> tuple[Any, Any]:
    """The codes, int8, with which unit · code - less is nearest to values `x`, and what they stand for, float32."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scaled = (x + less) * np.where(unit != 0, np.float32(1) / np.where(unit != 0, unit, 1), 0)
        if layout.book is None:
            codes = np.clip(np.rint(scaled), layout.least, layout.most).astype(np.int8)
            return codes, codes.astype(np.float32) * unit - less
        codes = _in_book(layout.book, scaled).astype(np.int8)
        return codes, layout.book[codes].astype(np.float32) * unit - less


def _alone(layout: Layout, g: Any, w: Any, scale: Any, low: Any) -> Blocks:
    """Blocks with fp16 scales of their own: the same codes again, of the rounded scale and minimum."""
    factor = _half(scale[:, 0])
    second = None if low is None else _half(-low[:, 0])
    unit = factor.astype(np.float32)[:, None]
    less = np.float32(0) if second is None else second.astype(np.float32)[:, None]
    codes, _ = nearest(layout, g[:, 0], unit, less)
    return Blocks(codes, None, factor, None, second)


def _settle(layout: Layout, g: Any, w: Any, scale: Any, low: Any) -> Blocks:
    """Integers for scales and minima, and codes, under the factors that hold the largest ones; then under those that
    fit these best, where that is better."""
    second: Any = None
    if low is None:
        end = np.take_along_axis(scale, np.argmax(np.abs(scale), axis=-1)[:, None], axis=-1)[:, 0]
        factor = _half(end / np.float32(layout.least_scale))
    else:
        factor = _half(scale.max(axis=-1) / np.float32(layout.most_scale))
        second = _half((-low).max(axis=-1) / np.float32(layout.most_scale))
    found, loss = _under(layout, g, w, scale, low, factor, second)
    for _ in range(SETTLED):
        again, less = _under(layout, g, w, scale, low, *_fitted(g, w, found))
        better = less < loss
        loss = np.where(better, less, loss)
        found = Blocks(*(_chosen(better, getattr(again, n), getattr(found, n)) for n in Blocks.__slots__))
    return _unshrunk(g, w, found)


def _unshrunk(g: Any, w: Any, b: Blocks) -> Blocks:
    """With factors that have as much of the values as there is of them: Σ weight · value · what it becomes is then
    Σ weight · value², and smaller where factors are those of the least squares."""
    unit = b.factor.astype(np.float32)[:, None]
    if b.scales is not None:
        unit = unit * b.scales.astype(np.float32)
    less = np.float32(0)
    if b.minima is not None:
        less = (b.second.astype(np.float32)[:, None] * b.minima.astype(np.float32))[..., None]
    wg = w * g
    of, has = _summed(wg * g), _summed(wg * (b.codes.reshape(g.shape).astype(np.float32) * unit[..., None] - less))
    grown = of < MOST_GROWN * has
    more = np.where(grown, of / np.where(grown, has, 1), 1)
    return replace(b, factor=_half(b.factor * more), second=None if b.second is None else _half(b.second * more))


def _chosen(better: Any, a: Any, b: Any) -> Any:
    """`a` of the blocks that are `better`, of others `b`."""
    return None if a is None else np.where(better.reshape(-1, *[1] * (a.ndim - 1)), a, b)


def _under(layout: Layout, g: Any, w: Any, scale: Any, low: Any, factor: Any, second: Any) -> tuple[Blocks, Any]:
    """The best integers near `scale` and `low` under these factors, codes taken anew for each; and the losses [n]."""
    if low is None:
        tried = [(0, 0), (-1, 0), (1, 0)]
    else:
        tried = [(0, 0), *((i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)]
    s0 = _rounded(layout, scale, factor)
    m0 = None if low is None else _rounded(layout, -low, second)
    best: list[Any] = [s0, m0, np.zeros(g.shape, np.int8), np.full(s0.shape, np.inf, np.float32)]
    for i, j in tried:
        s = np.clip(s0 + i, layout.least_scale, layout.most_scale)
        m = None if m0 is None else np.clip(m0 + j, layout.least_scale, layout.most_scale)
        unit = factor.astype(np.float32)[:, None] * s
        less = np.float32(0) if m is None else (second.astype(np.float32)[:, None] * m)[..., None]
        inverse = np.where(unit != 0, np.float32(1) / np.where(unit != 0, unit, 1), 0)[..., None]
        q = np.rint((g + less) * inverse)
        np.clip(q, layout.least, layout.most, out=q)
        off = q * unit[..., None] - less - g
        loss = (w * off * off).sum(axis=-1)
        better = loss < best[3]
        best[0] = np.where(better, s, best[0])
        best[1] = None if m is None else np.where(better, m, best[1])
        np.copyto(best[2], q.astype(np.int8), where=better[..., None])
        best[3] = np.where(better, loss, best[3])
    scales, minima, codes, loss = best
    kept = None if minima is None else minima.astype(np.int16)
    return Blocks(codes.reshape(len(g), SUPER), scales.astype(np.int16), factor, kept, second), loss.sum(axis=-1)


def _fitted(g: Any, w: Any, b: Blocks) -> tuple[Any, Any]:
    """The factors, fp16, that fit the integers and codes of `b` best: weighted least squares over all of a block."""
    x = b.codes.reshape(g.shape) * b.scales[..., None].astype(np.float32)
    wx = w * x
    xx, xg = _summed(wx * x), _summed(wx * g)
    if b.minima is None:
        return _half(np.where(xx > 0, xg / np.where(xx > 0, xx, 1), b.factor)), None
    y = b.minima[..., None].astype(np.float32)
    wy = w * y
    xy, yy, yg = _summed(wx * y), _summed(wy * y), _summed(wy * g)
    det = xx * yy - xy * xy
    fits = det > 1e-6 * xx * yy
    safe = np.where(fits, det, 1)
    factor = np.where(fits, (xg * yy - xy * yg) / safe, b.factor)
    second = np.where(fits, (xg * xy - xx * yg) / safe, b.second)
    fits = (factor > 0) & (second >= 0)
    return _half(np.where(fits, factor, b.factor)), _half(np.where(fits, second, b.second))


def _summed(terms: Any) -> Any:
    return terms.sum(axis=(-2, -1), dtype=np.float64)


def _half(factor: Any) -> Any:
    return factor.astype(np.float16)


def _rounded(layout: Layout, scale: Any, factor: Any) -> Any:
    """Scales [n, groups] as integers under their fp16 factors [n], as float32."""
    wide = factor.astype(np.float32)[:, None]
    found = np.rint(np.where(wide != 0, scale / np.where(wide != 0, wide, 1), 0))
    return np.clip(found, layout.least_scale, layout.most_scale)

"""attention as Pallas kernels: FlashAttention-2 (Dao, arXiv 2307.08691), with positions, sinks, window and soft cap.

Logits exist for a tile at a time, in registers. Of every query its largest logit m is kept for the gradient and the sum
of weights l, apart: their one number m + log l would lose what large logits have no bits for. A sink is a logit that is
there from the start, m = sink and l = 1, and is in both. Rows are the queries of all heads that share a key head, those
of one token beside each other: keys are read once for all of them, and their gradients add up by themselves.

    B batch, K key heads, G query heads of each, N = T · G rows, S slots, D and E dims

Going back, with p = exp(logit - m) / l, δ = Σ do · o over a row, and slope the growth of a logit with q · k:

    dv = pᵀ · do      ds = p · (do · vᵀ - δ) · slope      dq = ds · k      dk = dsᵀ · q
    dsink = -exp(sink - m) / l · δ

Where a row sees one slot, dp - δ is 0, which Σ do · o in another order is not: with float32 queries δ is Σ p · dp, by a
kernel of its own.

Slots are read from the first block that a row of the block may see to the last one: which these are follows from the
lowest and highest positions of both (`reach`). What lies between is masked, as in a ring that a window goes round.

Where there are too few blocks of rows to keep a device busy, as in a step of decoding, that is divided into equal parts
that know nothing of each other (flash-decoding, pytorch.org/blog/flash-decoding), and their m, l and
y = Σ exp(logit - m) · v are joined:

    m = max mᵢ        l = Σ lᵢ · exp(mᵢ - m)        y = Σ yᵢ · exp(mᵢ - m)

A sink joins as a part of its own, m = sink, l = 1 and y = 0; of a part that sees nothing m is -inf.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from pipeline.tensors.qtensor import QTensor
from plugins.kernels.attention.pallas_kernels import Options, back_to_keys, back_to_queries, forward, part, shares
from plugins.kernels.gradients import cotangent, given, once, wanted
from plugins.kernels.pallas.blocks import divisor, padded, power
from plugins.kernels.pallas.launch import Device, everywhere
from plugins.kernels.varying import alike

ROWS, SLOTS = 64, 64  # of a block, at most
LEAST = 16  # and at least, as heads have dims: what a matrix unit multiplies
PART = 256  # slots of a part, at least, if all are seen


def attention(
    q: Any,
    k: Any,
    v: Any,
    q_positions: Any,
    k_positions: Any,
    *,
    scale: float,
    window: int | None = None,
    sinks: Any = None,
    softcap: float | None = None,
    causal: bool = True,
    segments: Any = None,
) -> Any:
    """See the op's docstring."""
    q, at, slot = (jnp.asarray(a) for a in (q, q_positions, k_positions))
    k, v = (a if isinstance(a, QTensor) else jnp.asarray(a) for a in (k, v))
    extra = None if sinks is None else jnp.asarray(sinks)
    own = None if segments is None else jnp.asarray(segments)
    return _attention(Options(scale, softcap, window, causal), *alike(q, k, v, at, slot, own, extra))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(options: Options, *args: Any) -> Any:
    return _found(options, *args)[0].astype(args[0].dtype)


def _found(options: Options, *args: Any) -> tuple[Any, Any, Any]:
    """float32 `[B, T, H, E]`, and m and l `[B, T, H]`."""
    if not args[0].size or not args[1].shape[1]:  # no query, or no slot: a sink takes everything
        nothing = jnp.zeros(args[0].shape[:-1], jnp.float32)
        return jnp.zeros((*nothing.shape, args[2].shape[-1]), jnp.float32), nothing, nothing + 1
    out, m, total = everywhere(_forward_on, options, *args)
    return out, m, total


def _forward(options: Options, *args: Any) -> tuple[Any, Any]:
    q, k, v, *_, sinks = args
    asked, args = wanted(q, k, v, sinks), given(args)
    out, m, total = _found(options, *args)
    return out.astype(args[0].dtype), (args, out, m, total, asked)


@once
def backward(options: Options, kept: Any, dy: Any) -> tuple[Any, ...]:
    args, out, m, total, asked = kept
    q, k, v, *_, sinks = args
    do = cotangent(dy).astype(q.dtype)
    there = q.size and k.shape[1]
    share = jnp.sum(out * do.astype(jnp.float32), axis=-1)
    if q.dtype == jnp.float32 and there:
        (share,) = everywhere(_shares_on, options, *args, do, m, total, share)
    for_q, for_k, for_v, for_sinks = asked.flags
    dq = dk = dv = d_sinks = None
    if for_q:
        dq = everywhere(_queries_on, options, *args, do, m, total, share)[0] if there else jnp.zeros(q.shape)
    if for_k or for_v:
        both = everywhere(_keys_on, options, *args, do, m, total, share) if there else map(jnp.zeros_like, (k, v))
        dk, dv = (d.astype(a.dtype) if f else None for d, a, f in zip(both, (k, v), (for_k, for_v), strict=True))
    if for_sinks:
        lost = jnp.exp(sinks.astype(jnp.float32)[None, None] - m) / total * share
        d_sinks = -lost.sum(axis=(0, 1)).reshape(sinks.shape).astype(sinks.dtype)
    return None if dq is None else dq.astype(q.dtype), dk, dv, None, None, None, d_sinks


_attention.defvjp(_forward, backward, symbolic_zeros=True)


@dataclass(frozen=True)
class _Laid:
    """A call as kernels take it: arrays laid out in blocks, with where a point of the grid finds its own.

    Attributes:
        blocks: of rows, and of slots.
        slots_first: keys and values are read where they lie, `[B, S, K, D]`; else as `[B, K, S, D]`, a copy.
        rows_of, slots_of: by name, arrays that have rows and arrays that have slots.
    """

    device: Device
    options: Options
    shape: tuple[int, ...]
    dims: tuple[int, int]
    blocks: tuple[int, int]
    slots_first: bool
    rows_of: dict[str, Any]
    slots_of: dict[str, Any]

    @property
    def parts(self) -> int:
        """Into how many the slots of a block of rows are divided."""
        points = self.shape[0] * self.shape[2] * self.blocks[0]
        return max(1, min(self.shape[4] // PART, -(-self.device.busy // points)))

    def run(self, body: Any, over: int, reach: Any, results: tuple[str, ...], parts: int = 1) -> tuple[Any, ...]:
        """`body` for every block of rows (`over` 0) or of slots (1); `results` are named like what they look like.

        Args:
            parts: how often, each of which has a reach and results of its own; then without sinks.
        """
        arrays = {name: a for name, a in (*self.rows_of.items(), *self.slots_of.items()) if a is not None}
        if parts > 1:
            arrays.pop("sinks", None)
        specs = {name: self._spec(name, a.shape, over, parts) for name, a in arrays.items()}
        static = None if reach is not None else self.blocks[1 - over]
        if reach is not None:
            arrays["reach"] = reach
            specs["reach"] = pl.BlockSpec((None, None, 1, 2), lambda b, h, i: (b, i, 0, 0))
        names = list(arrays)

        def kernel(*refs: Any) -> None:
            found = dict(zip(names, refs, strict=False))
            body(self.options, found if static is None else {**found, "reach": static}, *refs[len(names) :])

        shapes = [self._result(name, parts) for name in results]
        batch, _, key_heads, *_ = self.shape
        return self.device.call(
            kernel, [(shape, jnp.float32) for shape in shapes], list(arrays.values()),
            grid=(batch, key_heads, self.blocks[over] * parts), in_specs=list(specs.values()),
            out_specs=[self._spec(name, shape, over) for name, shape in zip(results, shapes, strict=True)],
        )  # fmt: skip

    def _result(self, name: str, parts: int) -> tuple[int, ...]:
        batch, _, key_heads, *_ = self.shape
        rows, slots = parts * self.blocks[0] * self.options.rows, self.blocks[1] * self.options.slots
        if name in ("k", "v"):
            width = self.dims[name == "v"]
            return (batch, slots, key_heads, width) if self.slots_first else (batch, key_heads, slots, width)
        return batch, key_heads, rows, {"q": self.dims[0], "do": self.dims[1]}.get(name, 1)

    def _spec(self, name: str, shape: tuple[int, ...], over: int, parts: int = 1) -> Any:
        """The block of an array: its own rows or slots, and all of the other."""
        slots = name in ("k", "v", "k_scales", "v_scales", "slot", "of_slot")
        size, count = (self.options.slots, self.blocks[1]) if slots else (self.options.rows, self.blocks[0])
        mine = slots == (over == 1)
        held = size if mine else count * size

        def at(i: Any) -> Any:
            return (i if parts == 1 else lax.div(i, np.int32(parts))) if mine else 0

        if slots and name in ("k", "v"):
            if self.slots_first:
                return pl.BlockSpec((None, held, None, shape[-1]), lambda b, h, i: (b, at(i), h, 0))
            return pl.BlockSpec((None, None, held, shape[-1]), lambda b, h, i: (b, h, at(i), 0))
        if slots:
            if len(shape) == 4:
                return pl.BlockSpec((None, None, 1, held), lambda b, h, i: (b, h, 0, at(i)))
            return pl.BlockSpec((None, 1, held), lambda b, h, i: (b, 0, at(i)))
        if len(shape) == 4:
            return pl.BlockSpec((None, None, held, shape[-1]), lambda b, h, i: (b, h, at(i), 0))
        if name == "sinks":
            return pl.BlockSpec((None, held, 1), lambda b, h, i: (h, at(i), 0))
        return pl.BlockSpec((None, held, 1), lambda b, h, i: (b, at(i), 0))

    def reach(self, over: int, parts: int = 1) -> Any:
        """int32 `[B, blocks · parts, 1, 2]`: of a block of rows (`over` 0) which blocks of slots any row of it may see,
        the first and after the last, or its `parts`, one after the other; of a block of slots (1) which blocks of rows.
        None where all are read."""
        if self.device.overhangs:
            return None
        o = self.options
        at = self.rows_of["at"].reshape(-1, self.blocks[0], 1, o.rows)
        slot = self.slots_of["slot"].reshape(-1, 1, self.blocks[1], o.slots)
        # Rows that are padding ask for nothing: what they give is anything that is finite.
        lowest, least = (jnp.where(a < 0, np.iinfo(np.int32).max, a).min(axis=-1) for a in (at, slot))
        most = slot.max(axis=-1)
        seen = jnp.broadcast_to(most >= 0, (len(at), *self.blocks))
        seen = seen & (least <= at.max(axis=-1)) if o.causal else seen
        seen = seen & (most > lowest - o.window) if o.window is not None else seen
        axis = 2 - over
        first, last = jnp.argmax(seen, axis=axis), seen.shape[axis] - jnp.argmax(jnp.flip(seen, axis), axis=axis)
        count = jnp.where(seen.any(axis=axis), last - first, 0)
        cuts = [first + count * p // parts for p in range(parts + 1)]
        found = jnp.stack([jnp.stack(cuts[:-1], axis=-1), jnp.stack(cuts[1:], axis=-1)], axis=-1)
        return found.reshape(len(at), -1, 1, 2).astype(jnp.int32)

    def joined(self, y: Any, m: Any, total: Any, parts: int) -> tuple[Any, ...]:
        """What `forward` gives, of what `part` gives."""

        def apart(a: Any, of: int) -> Any:
            return a.reshape(*a.shape[:-2], self.blocks[0], of, self.options.rows, -1)

        y, m, total = (apart(a, parts) for a in (y, m, total))
        top = m.max(axis=3, keepdims=True)
        sinks = self.rows_of.get("sinks")
        if sinks is not None:
            sinks = apart(sinks, 1)[None]
            top = jnp.maximum(top, sinks)
        top = jnp.where(top == -jnp.inf, 0.0, top)
        fades = jnp.exp(m - top)
        sum_ = (total * fades).sum(axis=3, keepdims=True)
        sum_ = sum_ if sinks is None else sum_ + jnp.exp(sinks - top)
        sum_ = jnp.where(sum_ == 0, 1.0, sum_)
        out = (y * fades).sum(axis=3, keepdims=True) / sum_
        return tuple(a.reshape(*a.shape[:2], -1, a.shape[-1]) for a in (out, top, sum_))

    def by_token(self, rows: Any) -> Any:
        """`[B, T, H, width]` of `[B, K, N, width]`."""
        batch, queries, key_heads, group, *_ = self.shape
        found = rows[:, :, : queries * group].reshape(batch, key_heads, queries, group, -1)
        return jnp.moveaxis(found, 1, 2).reshape(batch, queries, key_heads * group, -1)

    def by_slot(self, found: Any, width: int) -> Any:
        """`[B, S, K, width]` of what lies as keys do."""
        found = found if self.slots_first else jnp.moveaxis(found, 1, 2)
        return found[:, : self.shape[4], :, :width]


def _laid(device: Device, options: Options, args: tuple[Any, ...], more: dict[str, Any]) -> _Laid:
    """Of the arguments of `_attention`, and of `more` arrays `[B, T, H]` or `[B, T, H, width]`."""
    q, k, v, at, slot, own, sinks = args
    (batch, queries, heads, _), (_, slots, key_heads, _) = q.shape, k.shape
    group = heads // key_heads
    n = queries * group
    high = min(ROWS, max(LEAST, power(n)))
    wide = max(LEAST, divisor(slots, SLOTS)) if slots > LEAST else LEAST
    if device.overhangs:
        wide = max(wide, device.lanes)
    dims = max(LEAST, power(k.shape[-1])), max(LEAST, power(v.shape[-1]))

    def rows(a: Any, width: int) -> Any:
        apart = a.reshape(batch, queries, key_heads, group, -1)
        return padded(jnp.moveaxis(apart, 2, 1).reshape(batch, key_heads, n, -1), {2: high, 3: width})

    def by_row(a: Any, fill: int) -> Any:
        return padded(jnp.repeat(a.astype(jnp.int32), group, axis=1)[:, :, None], {1: high}, fill)

    def by_slot(a: Any, fill: int) -> Any:
        return padded(a.astype(jnp.int32)[:, None], {2: wide}, fill)

    slots_first = not device.overhangs

    def keys(a: Any, width: int) -> Any:
        held = padded(a.codes if isinstance(a, QTensor) else a, {1: wide, 3: width})
        return held if slots_first else jnp.moveaxis(held, 1, 2)

    def scales(a: Any) -> Any:
        if not isinstance(a, QTensor):
            return None
        return padded(jnp.moveaxis(a.scales[..., 0], 1, 2)[:, :, None], {3: wide})

    rows_of = {"q": rows(q, dims[0]), "at": by_row(at, -1), "own": None if own is None else by_row(own, -1)}
    if sinks is not None:
        each = jnp.tile(sinks.astype(jnp.float32).reshape(key_heads, group), (1, queries))[:, :, None]
        rows_of["sinks"] = padded(each, {1: high})
    fills = {"do": dims[1]}
    for name, a in more.items():
        found = rows(a, fills.get(name, 1))
        rows_of[name] = jnp.where(jnp.arange(found.shape[2])[:, None] < n, found, 1) if name == "total" else found
    slots_of = {
        "k": keys(k, dims[0]), "v": keys(v, dims[1]), "k_scales": scales(k), "v_scales": scales(v),
        "slot": by_slot(slot, -1), "of_slot": None if own is None else by_slot(own, -2),
    }  # fmt: skip
    o = replace(options, element=k.scheme.element if isinstance(k, QTensor) else None, rows=high, slots=wide)
    blocks = rows_of["q"].shape[2] // high, slots_of["slot"].shape[2] // wide
    return _Laid(
        device, o, (batch, queries, key_heads, group, slots), dims, blocks, slots_first, rows_of, slots_of
    )  # fmt: skip


def _forward_on(options: Options, device: Device, *args: Any) -> tuple[Any, ...]:
    laid = _laid(device, options, args, {})
    parts, results = laid.parts, ("do", "m", "total")
    if parts > 1:
        y, m, total = laid.run(part, 0, laid.reach(0, parts), results, parts)
        out, m, total = laid.joined(y, m, total, parts)
    else:
        out, m, total = laid.run(forward, 0, laid.reach(0), results)
    return laid.by_token(out)[..., : args[2].shape[-1]], laid.by_token(m)[..., 0], laid.by_token(total)[..., 0]


def _queries_on(options: Options, device: Device, *args: Any) -> tuple[Any, ...]:
    laid = _back(options, device, args)
    (dq,) = laid.run(back_to_queries, 0, laid.reach(0), ("q",))
    return (laid.by_token(dq)[..., : args[0].shape[-1]],)


def _shares_on(options: Options, device: Device, *args: Any) -> tuple[Any, ...]:
    laid = _back(options, device, args)
    (found,) = laid.run(shares, 0, laid.reach(0), ("share",))
    return (laid.by_token(found)[..., 0],)


def _keys_on(options: Options, device: Device, *args: Any) -> tuple[Any, ...]:
    laid = _back(options, device, args)
    dk, dv = laid.run(back_to_keys, 1, laid.reach(1), ("k", "v"))
    return laid.by_slot(dk, args[1].shape[-1]), laid.by_slot(dv, args[2].shape[-1])


def _back(options: Options, device: Device, args: tuple[Any, ...]) -> _Laid:
    *of, do, m, total, share = args
    return _laid(device, options, tuple(of), {"do": do, "m": m, "total": total, "share": share})

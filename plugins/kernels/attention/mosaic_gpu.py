"""attention as a Mosaic GPU kernel for Hopper: FlashAttention (arXiv 2307.08691), by warpgroups with roles of their own
as in FlashAttention-3 (arXiv 2407.08608), with positions, segments, sinks, window and soft cap.

Queries and keys are read where they lie. Where there are few queries, as in a step of decoding, rows are those of all
heads that share a key head, a small copy, so that keys are read once for all of them. Slots that no row of a block may
see are left out, and where all rows see all slots nothing is masked: which these are follows from the positions of
both (`_reach`). A sink is a logit that is there from the start, m = sink and l = 1. Gradients are those of `pallas`, of
m and l as they are found here.

    B batch, H heads, K key heads, N rows of a head, S slots, D and E dims
"""

from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.backend import get_default_device

from plugins.kernels.attention import pallas
from plugins.kernels.attention.mosaic_gpu_kernel import LOG2_E, Shape, Tuning, forward
from plugins.kernels.attention.pallas_kernels import Options
from plugins.kernels.gradients import given, wanted
from plugins.kernels.mosaic_gpu.launch import Device, everywhere
from plugins.kernels.mosaic_gpu.products import HIGH
from plugins.kernels.pallas.blocks import padded
from plugins.kernels.varying import alike

FEW = 64  # queries, below which rows are those of all heads of a key head
# By the larger of D and E, and in a window that has few steps of 256 slots; measured on an H200.
TUNING = {64: Tuning(wide=256, ahead=2, overlapped=False), 128: Tuning(ahead=2)}
NARROW, IN_WINDOW = 1024, {64: Tuning(ahead=4), 128: Tuning(ahead=2)}


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
    arrays = [None if a is None else jnp.asarray(a) for a in (q, k, v, q_positions, k_positions, segments, sinks)]
    return _attention(Options(scale, softcap, window, causal), *alike(*arrays))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(options: Options, *args: Any) -> Any:
    return _found(options, *args)[0]


def _found(options: Options, *args: Any) -> tuple[Any, Any, Any]:
    """`[B, T, H, E]` of q's dtype, and float32 m and l `[B, T, H]`."""
    q, k, v, *_ = args
    if not q.size or not k.shape[1]:  # no query, or no slot: a sink takes everything
        nothing = jnp.zeros(q.shape[:-1], jnp.float32)
        return jnp.zeros((*nothing.shape, v.shape[-1]), q.dtype), nothing, nothing + 1
    few = options.window is not None and options.window <= NARROW
    tuning = (IN_WINDOW if few else TUNING)[max(q.shape[-1], v.shape[-1])]
    out, m, total = everywhere(_forward_on, (options, tuning), *args)
    return out, m, total


def _forward(options: Options, *args: Any) -> tuple[Any, Any]:
    q, k, v, *_, sinks = args
    asked, args = wanted(q, k, v, sinks), given(args)
    out, m, total = _found(options, *args)
    return out, (args, out.astype(jnp.float32), m, total, asked)


_attention.defvjp(_forward, pallas.backward, symbolic_zeros=True)


def _forward_on(how: tuple[Options, Tuning], device: Device, *args: Any) -> tuple[Any, Any, Any]:
    options, tuning = how
    q, k, v, at, slot, own, sinks = args
    (batch, queries, heads, dims), key_heads, wide = q.shape, k.shape[2], v.shape[-1]
    together = heads // key_heads if queries < FEW else 1
    across = heads // together  # heads, as the kernel is told

    def joined(a: Any) -> Any:
        """`[B, N, across, ·]` of `[B, T, H, ·]`: the heads of a key head beside each other, token after token."""
        apart = a.reshape(batch, queries, across, together, -1)
        return jnp.moveaxis(apart, 3, 2).reshape(batch, queries * together, across, -1)

    n = queries * together
    warpgroups = 1 if n <= HIGH else tuning.warpgroups
    high = HIGH * warpgroups
    per_row = {"at": at} if own is None else {"at": at, "own": own}
    per_row = {name: _rows(a.astype(jnp.int32), together, high) for name, a in per_row.items()}
    per_slot = {"slot": padded(slot.astype(jnp.int32), {1: tuning.wide}, -1)}
    if own is not None:
        per_slot["of_slot"] = padded(own.astype(jnp.int32), {1: tuning.wide}, -2)
    reach = _reach(options, (high, tuning.wide), per_row, per_slot)
    if sinks is not None:
        of_each = (sinks.astype(jnp.float32) * np.float32(LOG2_E)).reshape(across, together)
        per_row["sinks"] = padded(jnp.tile(of_each, (1, queries)), {1: high})
    long = padded(joined(q), {1: high})
    args_by = {
        "q": long, "k": padded(k, {1: tuning.wide}), "v": padded(v, {1: tuning.wide}), **per_row, **per_slot,
        "reach": reach,
    }  # fmt: skip
    length = long.shape[1]
    blocks = across, length // high, batch
    at_once = min(prod(blocks), _multiprocessors(device)) if tuning.lasting else prod(blocks)
    shape = Shape(
        device, (dims, wide), q.dtype, across // key_heads, warpgroups, tuning, blocks, at_once, tuple(per_row),
        tuple(per_slot),
    )  # fmt: skip
    results = {
        "out": ((batch, length, across, wide), q.dtype), "m": ((batch, across, length), jnp.float32),
        "total": ((batch, across, length), jnp.float32),
    }  # fmt: skip
    scratch = shape.scratch()
    names = *args_by, *results

    def body(*refs: Any) -> None:
        gmem, smem = refs[: len(names)], refs[len(names) :]
        forward(options, shape, dict(zip(names, gmem, strict=True)), dict(zip(scratch, smem, strict=True)))

    out, m, total = device.call(
        body, list(results.values()), list(args_by.values()),
        grid={"at_once": at_once}, warpgroups=warpgroups + 1,
        scratch=list(scratch.values()),
    )  # fmt: skip

    def parted(a: Any) -> Any:
        """`[B, T, H, ·]` of `[B, N, across, ·]`."""
        apart = a[:, :n].reshape(batch, queries, together, across, -1)
        return jnp.moveaxis(apart, 2, 3).reshape(batch, queries, heads, -1)

    m, total = (parted(jnp.moveaxis(a, 1, 2))[..., 0] for a in (m, total))
    return parted(out), m, total


def _multiprocessors(device: Device) -> int:
    """Of the default device; of an H100 or H200 (SXM), 132, where that has not said. Two where kernels are interpreted,
    to be seen having several blocks of rows each."""
    return 2 if device.interpreted else getattr(get_default_device(), "core_count", None) or 132


def _rows(each: Any, together: int, high: int) -> Any:
    """`[B, N]` of what queries `[B, T]` have; rows that are none have -1."""
    return padded(jnp.repeat(each, together, axis=1), {1: high}, -1)


def _reach(o: Options, block: tuple[int, int], per_row: dict[str, Any], per_slot: dict[str, Any]) -> Any:
    """int32 `[B, blocks, 4]`: of a block of rows, the first step of slots that any row of it may see, the first that
    all rows see all of, the first after that which they do not, and the one after the last that any may see.

    Args:
        block: rows of one, and slots of a step.
    """
    high, wide = block
    at = per_row["at"].reshape(len(per_row["at"]), -1, 1, high)
    slot = per_slot["slot"].reshape(len(at), 1, -1, wide)
    # Rows that are padding ask for nothing: what they give is anything that is finite.
    lowest, least = (jnp.where(a < 0, np.iinfo(np.int32).max, a).min(axis=-1) for a in (at, slot))
    most = slot.max(axis=-1)
    seen, full = most >= 0, slot.min(axis=-1) >= 0
    if o.causal:
        seen, full = seen & (least <= at.max(axis=-1)), full & (most <= at.min(axis=-1))
    if o.window is not None:
        seen, full = seen & (most > lowest - o.window), full & (slot.min(axis=-1) > at.max(axis=-1) - o.window)
    if "own" in per_row:
        mine = per_row["own"].reshape(at.shape)
        its = per_slot["of_slot"].reshape(slot.shape)
        seen = seen & (mine.min(axis=-1) <= its.max(axis=-1)) & (mine.max(axis=-1) >= its.min(axis=-1))
        alike_ = (mine.max(axis=-1) == its.min(axis=-1)) & (mine.min(axis=-1) == its.max(axis=-1))
        full = full & alike_ & (its.min(axis=-1) == its.max(axis=-1))
    seen, full = (jnp.broadcast_to(a, (len(at), at.shape[1], slot.shape[2])) for a in (seen, full & seen))
    steps = seen.shape[2]
    any_ = seen.any(axis=2)
    first = jnp.where(any_, jnp.argmax(seen, axis=2), 0)
    last = jnp.where(any_, steps - jnp.argmax(jnp.flip(seen, 2), axis=2), 0)
    whole = jnp.where(full.any(axis=2), jnp.argmax(full, axis=2), last)
    ends = ~full & (jnp.arange(steps)[None, None] >= whole[..., None])
    broken = jnp.where(ends.any(axis=2), jnp.argmax(ends, axis=2), steps)
    return jnp.stack([first, whole, jnp.minimum(broken, last), last], axis=-1).astype(jnp.int32)

"""The kernel of `mosaic_gpu.py`: what a block of rows of one head gives.

A block is warpgroups that multiply (`Shape.warpgroups`, 64 rows each) and one that copies keys, values and positions of
slots to shared memory, up to `Tuning.ahead` steps before they are read; it has several blocks of rows, one after the
other (`_Blocks`). Two barriers a place say that keys or values are
there, two that all who multiply have done with them. A product q · kᵀ and its softmax stay in registers, and are the
left side of the product with v.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import e, log, log2, prod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from plugins.kernels.attention.pallas_kernels import Options
from plugins.kernels.mosaic_gpu.launch import COPIES, WARPGROUP, Device, registers, tiled
from plugins.kernels.mosaic_gpu.products import (
    ACROSS,
    COLUMNS,
    HIGH,
    ROWS,
    added,
    laid,
    transposed,
    transposed_while_added,
)  # fmt: skip

Refs = Mapping[str, Any]
LOG2_E, LN_2 = log2(e), log(2)


@dataclass(frozen=True, slots=True)
class Tuning:
    """What decides how fast a kernel is, and not what it gives.

    Attributes:
        warpgroups: that multiply, of a block of more than 64 rows.
        wide: slots of a step.
        ahead: steps whose keys and values shared memory has room for.
        turns: warpgroups begin their products one after the other, so that one multiplies while another has its
            softmax; else each begins when it can, which is all at once, as they wait for the same keys.
        overlapped: q · kᵀ of a step is made before p · v of the step before it is done with, and the softmax of the
            one while the other goes on.
        late: the last block of rows is begun first: it is the one with most to do where masks are causal.
        lasting: there is one block of warpgroups for each multiprocessor, which has one block of rows after the other,
            so that keys of the next are copied while the one before is done with; else one for each block of rows.
    """

    warpgroups: int = 2
    wide: int = 128
    ahead: int = 2
    turns: bool = True
    overlapped: bool = True
    late: bool = True
    lasting: bool = True


@dataclass(frozen=True, slots=True)
class Shape:
    """How a kernel is cut.

    Attributes:
        dims: of a key and of a value.
        group: heads that share a key head.
        warpgroups: that multiply, which `tuning` may have more of.
        blocks: of rows, those of all heads and batches, by name, the fastest first.
        at_once: blocks of warpgroups.
        per_row, per_slot: names of int32 or float32 arrays `[B or H, N]` and `[B, S]`: `at` and `slot` (positions),
            `own` and `of_slot` (segments), `sinks`.
    """

    device: Device
    dims: tuple[int, int]
    dtype: Any
    group: int
    warpgroups: int
    tuning: Tuning
    blocks: tuple[int, int, int]
    at_once: int
    per_row: tuple[str, ...]
    per_slot: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Of a block."""
        return HIGH * self.warpgroups

    def scratch(self) -> dict[str, Any]:
        """Shared memory and barriers of a block, by name."""
        across, ahead, wide, (d, e_) = self.warpgroups, self.tuning.ahead, self.tuning.wide, self.dims
        held: dict[str, Any] = {
            "q": tiled((across, HIGH, d), self.dtype), "k": tiled((ahead, wide, d), self.dtype),
            "v": tiled((ahead, wide, e_), self.dtype), "out": tiled((across, HIGH, e_), self.dtype),
            "m": plgpu.SMEM((across, HIGH), jnp.float32), "total": plgpu.SMEM((across, HIGH), jnp.float32),
        }  # fmt: skip
        kinds = {"sinks": jnp.float32}
        held |= {name: plgpu.SMEM((across, HIGH), kinds.get(name, jnp.int32)) for name in self.per_row}
        held |= {name: plgpu.SMEM((ahead, wide), jnp.int32) for name in self.per_slot}
        return held | {
            "q there": plgpu.Barrier(num_arrivals=1 + len(self.per_row), num_barriers=across),
            "k there": plgpu.Barrier(num_arrivals=1 + len(self.per_slot), num_barriers=ahead),
            "v there": plgpu.Barrier(num_barriers=ahead),
            "k done": plgpu.Barrier(num_arrivals=across, num_barriers=ahead),
            "v done": plgpu.Barrier(num_arrivals=across, num_barriers=ahead),
            "turn done": plgpu.Barrier(num_barriers=across),
        }  # fmt: skip


def forward(o: Options, shape: Shape, gmem: Refs, smem: Refs) -> None:
    """`out` `[B, N, H, E]` of q's dtype, float32 `m` and `total` `[B, H, N]`, of `q` `[B, N, H, D]`, `k`
    `[B, S, K, D]`, `v` `[B, S, K, E]`, and of `reach` int32 `[B, blocks, 4]`: which steps of slots a block reads, from
    the first until the last, and between which of them all rows see all slots.

    Args:
        o: `scale`, `softcap`, `window` and `causal` count.
        gmem, smem: references by name: arguments and results; what `Shape.scratch` is made into.
    """
    mine = lax.axis_index(WARPGROUP)

    @pl.when(mine < shape.warpgroups)
    def _() -> None:
        plgpu.set_max_registers(registers(shape.warpgroups), action="increase")
        _multiply(o, shape, gmem, smem, mine)

    @pl.when(mine == shape.warpgroups)
    def _() -> None:
        plgpu.set_max_registers(COPIES, action="decrease")
        _copy(o, shape, gmem, smem)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Which blocks of rows a block of warpgroups has, one after the other: of as many as there are blocks of warpgroups
    one, then of the next as many one, from the other end, so that all have about as much to do."""

    o: Options
    shape: Shape
    reach: Any

    def count(self) -> Any:
        across, all_ = self.shape.at_once, prod(self.shape.blocks)
        rounds, rest = divmod(all_, across)
        return np.int32(rounds) + (self.place(np.int32(rounds)) < rest).astype(jnp.int32)

    def place(self, n: Any) -> Any:
        """Among those of round `n`."""
        own = lax.axis_index("at_once")
        return jnp.where(lax.rem(n, np.int32(2)) == 0, own, np.int32(self.shape.at_once - 1) - own)

    def at(self, n: Any) -> tuple[Any, Any, Any]:
        """Batch, block of rows, head."""
        heads, blocks, _ = (np.int32(count) for count in self.shape.blocks)
        one = n * np.int32(self.shape.at_once) + self.place(n)
        block = lax.rem(lax.div(one, heads), blocks)
        block = blocks - 1 - block if self.shape.tuning.late and self.o.causal else block
        return lax.div(one, heads * blocks), block, lax.rem(one, heads)

    def steps(self, batch: Any, block: Any) -> tuple[Any, Any, Any, Any]:
        """See `forward`; there is one at least, of which nothing is seen where there is none."""
        first, whole, broken, last = (self.reach[batch, block, n] for n in range(4))
        return first, whole, broken, jnp.maximum(last, first + 1)


def _copy(o: Options, shape: Shape, gmem: Refs, smem: Refs) -> None:
    """What the warpgroup does that copies."""
    blocks, ahead = _Blocks(o, shape, gmem["reach"]), shape.tuning.ahead

    def block(n: Any, before: Any) -> Any:
        batch, at, head = blocks.at(n)
        first, _, _, last = blocks.steps(batch, at)
        key_head = lax.div(head, np.int32(shape.group))

        def step(i: Any, _: None) -> None:
            place = lax.rem(i, np.int32(ahead))
            slots = pl.ds((first + i - before) * shape.tuning.wide, shape.tuning.wide)
            for name, beside in (("k", shape.per_slot), ("v", ())):

                @pl.when(i >= ahead)
                def _(name: str = name) -> None:
                    plgpu.barrier_wait(smem[f"{name} done"].at[place])

                there = smem[f"{name} there"].at[place]
                plgpu.copy_gmem_to_smem(gmem[name].at[batch, slots, key_head], smem[name].at[place], there)
                for other in beside:
                    plgpu.copy_gmem_to_smem(gmem[other].at[batch, slots], smem[other].at[place], there)

        after = before + last - first
        lax.fori_loop(before, after, step, None)
        return after

    def end(i: Any, _: None) -> None:
        for name in ("k", "v"):
            plgpu.barrier_wait(smem[f"{name} done"].at[lax.rem(i, np.int32(ahead))])

    steps = lax.fori_loop(0, blocks.count(), block, np.int32(0))
    lax.fori_loop(jnp.maximum(steps - ahead, 0), steps, end, None)  # all that was said was heard


def _multiply(o: Options, shape: Shape, gmem: Refs, smem: Refs, mine: Any) -> None:
    """What each of the others does, of its rows."""
    blocks, there = _Blocks(o, shape, gmem["reach"]), smem["q there"].at[mine]
    count = blocks.count()

    def rows_of(block: Any) -> Any:
        return pl.ds((block * shape.warpgroups + mine) * HIGH, HIGH)

    def ask(n: Any) -> None:
        batch, block, head = blocks.at(n)
        plgpu.copy_gmem_to_smem(gmem["q"].at[batch, rows_of(block), head], smem["q"].at[mine], there)
        for name in shape.per_row:
            of = head if name == "sinks" else batch
            plgpu.copy_gmem_to_smem(gmem[name].at[of, rows_of(block)], smem[name].at[mine], there)

    def block(n: Any, before: Any) -> Any:
        batch, at, head = blocks.at(n)
        first, whole, broken, last = blocks.steps(batch, at)
        plgpu.barrier_wait(there)
        rows = {name: laid(shape.device, smem[name][mine], ROWS) for name in shape.per_row}
        each = _Steps(o, shape, smem, mine, rows, lambda: pl.when(n + 1 < count)(lambda: ask(n + 1)))
        after = before + last - first
        y, top, total = each.all(before, whole - first + before, broken - first + before, after)
        total = jnp.where(total == 0, 1.0, total)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # of the block before
        smem["out"][mine] = (y * _down(1 / total, y.shape)).astype(shape.dtype)
        smem["m"][mine] = jnp.where(top == -jnp.inf, 0.0, top) * np.float32(LN_2)
        smem["total"][mine] = total
        plgpu.commit_smem()  # type: ignore[no-untyped-call]
        plgpu.copy_smem_to_gmem(smem["out"].at[mine], gmem["out"].at[batch, rows_of(at), head])
        for name in ("m", "total"):
            plgpu.copy_smem_to_gmem(smem[name].at[mine], gmem[name].at[batch, head, rows_of(at)])
        return after

    turns = _Turns(shape, smem, mine)
    ask(np.int32(0))
    turns.begin()
    lax.fori_loop(0, count, block, np.int32(0))
    turns.end()
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)


@dataclass(frozen=True, slots=True)
class _Turns:
    """Whose products are next."""

    shape: Shape
    smem: Refs
    mine: Any

    @property
    def taken(self) -> bool:
        return self.shape.tuning.turns and self.shape.warpgroups > 1

    def begin(self) -> None:
        """The first turn is the first one's, from the last."""
        if self.taken:
            pl.when(self.mine == self.shape.warpgroups - 1)(self.pass_on)

    def end(self) -> None:
        """All that was said was heard."""
        if self.taken:
            pl.when(self.mine == 0)(self.wait)

    def wait(self) -> None:
        if self.taken:
            plgpu.barrier_wait(self.smem["turn done"].at[self.mine])

    def pass_on(self) -> None:
        if self.taken:
            plgpu.barrier_arrive(self.smem["turn done"].at[lax.rem(self.mine + 1, np.int32(self.shape.warpgroups))])


@dataclass(frozen=True, slots=True)
class _Steps:
    """What a warpgroup that multiplies, number `mine`, does of the steps of slots of a block of rows, `[first, last)`
    of all that it does.

    Attributes:
        rows: what rows have, to mask with.
        read: is done when q has been read for the last time.
    """

    o: Options
    shape: Shape
    smem: Refs
    mine: Any
    rows: Refs
    read: Callable[[], None]

    def all(self, first: Any, whole: Any, broken: Any, last: Any) -> tuple[Any, Any, Any]:
        """Σ p · v, m (of logits times log2 e, as the device has powers of 2) and l."""

        def zeros(*size: int) -> Any:
            return laid(self.shape.device, jnp.zeros(size, jnp.float32), ACROSS if len(size) == 2 else ROWS)

        y, total = zeros(HIGH, self.shape.dims[1]), zeros(HIGH)
        sink = "sinks" in self.rows
        so_far = y, self.rows["sinks"] if sink else total - np.float32(np.inf), total + 1 if sink else total
        of = self.overlapped if self.shape.tuning.overlapped else self.one_by_one
        y, top, total = of(so_far, first, whole, broken, last)
        return y, top, total

    def one_by_one(self, so_far: Any, first: Any, whole: Any, broken: Any, last: Any) -> Any:
        """A step is done with before the next begins; a turn is p · v of one and q · kᵀ of the next."""
        self.turns.wait()
        for start, stop, masked in ((first, whole, True), (whole, broken, False), (broken, last, True)):

            def step(i: Any, so_far: Any, masked: bool = masked) -> Any:
                y, top, total = so_far
                self.wait("k", i)
                logits = transposed(self.shape.device, self.q, self.ref("k", i), self.turns.pass_on)
                p, fades, top, total = self.softmax(i, logits, top, total, masked)
                self.wait("v", i)
                self.turns.wait()
                y = added(self.shape.device, y * _down(fades, y.shape), self.narrow(p), self.ref("v", i))
                self.done("v", i)
                return y, top, total

            so_far = lax.fori_loop(start, stop, step, so_far)
        self.turns.pass_on()
        self.read()
        return so_far

    def overlapped(self, so_far: Any, first: Any, whole: Any, broken: Any, last: Any) -> Any:
        """q · kᵀ of the first, of each other with p · v of the one before, and p · v of the last, as FlashAttention-3
        has them (arXiv 2407.08608, algorithm 2)."""
        y, top, total = so_far
        self.wait("k", first)
        self.turns.wait()
        logits = transposed(self.shape.device, self.q, self.ref("k", first), self.turns.pass_on)
        p, _, top, total = self.softmax(first, logits, top, total, True)
        so_far = y, self.narrow(p), top, total
        starts = first + 1, jnp.maximum(whole, first + 1), jnp.maximum(broken, first + 1)
        for start, stop, masked in zip(starts, (whole, broken, last), (True, False, True), strict=True):

            def step(i: Any, so_far: Any, masked: bool = masked) -> Any:
                y, p, top, total = so_far
                self.wait("k", i)
                self.wait("v", i - 1)
                self.turns.wait()
                (p, fades, top, total), y = transposed_while_added(
                    self.shape.device, self.q, self.ref("k", i), (y, p, self.ref("v", i - 1)), self.turns.pass_on,
                    lambda logits: self.softmax(i, logits, top, total, masked),
                )  # fmt: skip
                self.done("v", i - 1)
                # Not before the other product is there, whose left side has the registers that this is for.
                y, p = lax.optimization_barrier((y, p))  # type: ignore[no-untyped-call]
                return y * _down(fades, y.shape), self.narrow(p), top, total

            so_far = lax.fori_loop(start, stop, step, so_far)
        y, p, top, total = so_far
        self.read()
        self.wait("v", last - 1)
        y = added(self.shape.device, y, p, self.ref("v", last - 1))
        self.done("v", last - 1)
        return y, top, total

    def softmax(self, i: Any, products: Any, top: Any, total: Any, masked: bool) -> tuple[Any, Any, Any, Any]:
        """p, what Σ p · v of the steps before is to be multiplied with, m and l."""
        logits, factor = _bent(self.o, products)
        if masked:
            slots = {name: laid(self.shape.device, self.ref(name, i)[...], COLUMNS) for name in self.shape.per_slot}
            logits = jnp.where(_seen(self.o, self.rows, slots, logits.shape), logits, -jnp.inf)
        self.done("k", i)
        new = jnp.maximum(top, logits.max(axis=1) * factor)
        base = jnp.where(new == -jnp.inf, 0.0, new)  # nothing took part yet: no -inf - -inf
        # A multiplication and an addition, which the device has in one.
        p, fades = jnp.exp2(logits * factor - _down(base, logits.shape)), jnp.exp2(top - base)
        return p, fades, new, total * fades + p.sum(axis=1)

    def narrow(self, p: Any) -> Any:
        return p.astype(self.shape.dtype)

    @property
    def q(self) -> Any:
        return self.smem["q"].at[self.mine]

    def ref(self, name: str, i: Any) -> Any:
        """Where it is of a step."""
        return self.smem[name].at[self.place(i)]

    def place(self, i: Any) -> Any:
        return lax.rem(i, np.int32(self.shape.tuning.ahead))

    def wait(self, name: str, i: Any) -> None:
        plgpu.barrier_wait(self.smem[f"{name} there"].at[self.place(i)])

    def done(self, name: str, i: Any) -> None:
        plgpu.barrier_arrive(self.smem[f"{name} done"].at[self.place(i)])

    @property
    def turns(self) -> _Turns:
        return _Turns(self.shape, self.smem, self.mine)


def _bent(o: Options, products: Any) -> tuple[Any, np.float32]:
    """Logits, and what they are yet to be multiplied with, log2 e included; that is more than 0, so that the largest
    stays the largest. The device's own tanh is off by 2^-11, which a soft cap of 30 would make 0.015."""
    if o.softcap is None:
        factor = np.float32(o.scale * LOG2_E)
        return (products, factor) if factor > 0 else (products * factor, np.float32(1))
    powers = jnp.exp2(products * np.float32(2 * o.scale / o.softcap * LOG2_E))
    return 1 - 2 / (1 + powers), np.float32(o.softcap * LOG2_E)


def _seen(o: Options, rows: Refs, slots: Refs, shape: tuple[int, ...]) -> Any:
    """bool `[rows, slots]`."""
    at, slot = _down(rows["at"], shape), _along(slots["slot"], shape)
    seen = slot >= 0
    seen = seen & (slot <= at) if o.causal else seen
    seen = seen & (slot > at - o.window) if o.window is not None else seen
    if "own" in rows:
        seen = seen & (_down(rows["own"], shape) == _along(slots["of_slot"], shape))
    return seen


def _down(column: Any, shape: tuple[int, ...]) -> Any:
    return lax.broadcast_in_dim(column, shape, [0])


def _along(row: Any, shape: tuple[int, ...]) -> Any:
    return lax.broadcast_in_dim(row, shape, [1])

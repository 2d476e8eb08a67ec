"""The kernel of `mosaic_gpu.py`: what a block of rows of one head gives.

A block is warpgroups that multiply (`Shape.warpgroups`, 64 rows each) and one that copies keys, values and positions of
slots to shared memory, up to `Shape.ahead` steps before they are read. Two barriers a place say that keys or values are
there, two that all who multiply have done with them. A product q · kᵀ and its softmax stay in registers, and are the
left side of the product with v.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import e, log, log2
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from plugins.kernels.attention.pallas_kernels import Options
from plugins.kernels.mosaic_gpu.launch import COPIES, WARPGROUP, Device, registers, tiled
from plugins.kernels.mosaic_gpu.products import ACROSS, COLUMNS, HIGH, ROWS, added, laid, transposed

Refs = Mapping[str, Any]
WIDE = 128  # slots of a step
LOG2_E, LN_2 = log2(e), log(2)


@dataclass(frozen=True, slots=True)
class Shape:
    """How a kernel is cut.

    Attributes:
        dims: of a key and of a value.
        group: heads that share a key head.
        warpgroups: that multiply.
        ahead: steps whose keys and values shared memory has room for.
        per_row, per_slot: names of int32 or float32 arrays `[B or H, N]` and `[B, S]`: `at` and `slot` (positions),
            `own` and `of_slot` (segments), `sinks`.
    """

    device: Device
    dims: tuple[int, int]
    dtype: Any
    group: int
    warpgroups: int
    ahead: int
    per_row: tuple[str, ...]
    per_slot: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Of a block."""
        return HIGH * self.warpgroups

    def scratch(self) -> dict[str, Any]:
        """Shared memory and barriers of a block, by name."""
        across, ahead, (d, e_) = self.warpgroups, self.ahead, self.dims
        held: dict[str, Any] = {
            "q": tiled((across, HIGH, d), self.dtype), "k": tiled((ahead, WIDE, d), self.dtype),
            "v": tiled((ahead, WIDE, e_), self.dtype), "out": tiled((across, HIGH, e_), self.dtype),
            "m": plgpu.SMEM((across, HIGH), jnp.float32), "total": plgpu.SMEM((across, HIGH), jnp.float32),
        }  # fmt: skip
        kinds = {"sinks": jnp.float32}
        held |= {name: plgpu.SMEM((across, HIGH), kinds.get(name, jnp.int32)) for name in self.per_row}
        held |= {name: plgpu.SMEM((ahead, WIDE), jnp.int32) for name in self.per_slot}
        return held | {
            "q there": plgpu.Barrier(num_arrivals=1 + len(self.per_row), num_barriers=across),
            "k there": plgpu.Barrier(num_arrivals=1 + len(self.per_slot), num_barriers=ahead),
            "v there": plgpu.Barrier(num_barriers=ahead),
            "k done": plgpu.Barrier(num_arrivals=across, num_barriers=ahead),
            "v done": plgpu.Barrier(num_arrivals=across, num_barriers=ahead),
        }  # fmt: skip


def forward(o: Options, shape: Shape, gmem: Refs, smem: Refs) -> None:
    """`out` `[B, N, H, E]` of q's dtype, float32 `m` and `total` `[B, H, N]`, of `q` `[B, N, H, D]`, `k`
    `[B, S, K, D]`, `v` `[B, S, K, E]`, and of `reach` int32 `[B, blocks, 4]`: which steps of slots a block reads, from
    the first until the last, and between which of them all rows see all slots.

    Args:
        o: `scale`, `softcap`, `window` and `causal` count.
        gmem, smem: references by name: arguments and results; what `Shape.scratch` is made into.
    """
    batch, block, head = (lax.axis_index(name) for name in ("batch", "block", "head"))
    mine = lax.axis_index(WARPGROUP)
    first, whole, broken, last = (gmem["reach"][batch, block, n] for n in range(4))

    @pl.when(mine < shape.warpgroups)
    def _() -> None:
        plgpu.set_max_registers(registers(shape.warpgroups), action="increase")
        _multiply(o, shape, gmem, smem, (batch, block, head, mine), (first, whole, broken, last))

    @pl.when(mine == shape.warpgroups)
    def _() -> None:
        plgpu.set_max_registers(COPIES, action="decrease")
        _copy(shape, gmem, smem, (batch, lax.div(head, np.int32(shape.group))), first, last - first)


def _copy(shape: Shape, gmem: Refs, smem: Refs, of: tuple[Any, Any], first: Any, steps: Any) -> None:
    """What the warpgroup does that copies."""
    batch, key_head = of

    def step(i: Any, _: None) -> None:
        place = lax.rem(i, np.int32(shape.ahead))
        slots = pl.ds((first + i) * WIDE, WIDE)
        for name, beside in (("k", shape.per_slot), ("v", ())):

            @pl.when(i >= shape.ahead)
            def _(name: str = name) -> None:
                plgpu.barrier_wait(smem[f"{name} done"].at[place])

            there = smem[f"{name} there"].at[place]
            plgpu.copy_gmem_to_smem(gmem[name].at[batch, slots, key_head], smem[name].at[place], there)
            for other in beside:
                plgpu.copy_gmem_to_smem(gmem[other].at[batch, slots], smem[other].at[place], there)

    def end(i: Any, _: None) -> None:
        for name in ("k", "v"):
            plgpu.barrier_wait(smem[f"{name} done"].at[lax.rem(i, np.int32(shape.ahead))])

    lax.fori_loop(0, steps, step, None)
    lax.fori_loop(jnp.maximum(steps - shape.ahead, 0), steps, end, None)  # all that was said was heard


def _multiply(
    o: Options, shape: Shape, gmem: Refs, smem: Refs, at: tuple[Any, Any, Any, Any], reach: tuple[Any, Any, Any, Any]
) -> None:
    """What each of the others does, of its rows."""
    batch, block, head, mine = at
    first, whole, broken, last = reach
    rows = pl.ds((block * shape.warpgroups + mine) * HIGH, HIGH)
    there = smem["q there"].at[mine]
    plgpu.copy_gmem_to_smem(gmem["q"].at[batch, rows, head], smem["q"].at[mine], there)
    for name in shape.per_row:
        of = head if name == "sinks" else batch
        plgpu.copy_gmem_to_smem(gmem[name].at[of, rows], smem[name].at[mine], there)
    plgpu.barrier_wait(there)
    mine_of = {name: laid(shape.device, smem[name][mine], ROWS) for name in shape.per_row}

    def zeros(*size: int) -> Any:
        return laid(shape.device, jnp.zeros(size, jnp.float32), ACROSS if len(size) == 2 else ROWS)

    top, total = mine_of["sinks"] if "sinks" in mine_of else zeros(HIGH) - np.float32(np.inf), zeros(HIGH)
    so_far = (zeros(HIGH, shape.dims[1]), top, total + 1 if "sinks" in mine_of else total)
    for start, stop, masked in ((first, whole, True), (whole, broken, False), (broken, last, True)):

        def step(i: Any, so_far: Any, masked: bool = masked) -> Any:
            place = lax.rem(i, np.int32(shape.ahead))
            return _step(o, shape, smem, mine, mine_of if masked else None, place, so_far)

        so_far = lax.fori_loop(start - first, stop - first, step, so_far)
    y, top, total = so_far
    total = jnp.where(total == 0, 1.0, total)
    smem["out"][mine] = (y / _down(total, y.shape)).astype(shape.dtype)
    smem["m"][mine] = jnp.where(top == -jnp.inf, 0.0, top) * np.float32(LN_2)
    smem["total"][mine] = total
    plgpu.commit_smem()  # type: ignore[no-untyped-call]
    plgpu.copy_smem_to_gmem(smem["out"].at[mine], gmem["out"].at[batch, rows, head])
    for name in ("m", "total"):
        plgpu.copy_smem_to_gmem(smem[name].at[mine], gmem[name].at[batch, head, rows])
    plgpu.wait_smem_to_gmem(0)


def _step(o: Options, shape: Shape, smem: Refs, mine: Any, rows: Refs | None, place: Any, so_far: Any) -> Any:
    """Σ p · v, m (of logits times log2 e, as the device has powers of 2) and l, with the slots of one step.

    Args:
        rows: what rows have, to mask with; None where all is seen.
    """
    y, top, total = so_far
    plgpu.barrier_wait(smem["k there"].at[place])
    logits = _bent(o, transposed(shape.device, smem["q"].at[mine], smem["k"].at[place]))
    if rows is not None:
        slots = {name: laid(shape.device, smem[name][place], COLUMNS) for name in shape.per_slot}
        logits = jnp.where(_seen(o, rows, slots, logits.shape), logits, -jnp.inf)
    plgpu.barrier_arrive(smem["k done"].at[place])
    new = jnp.maximum(top, logits.max(axis=1))
    base = jnp.where(new == -jnp.inf, 0.0, new)  # nothing took part yet: no -inf - -inf
    p, fades = jnp.exp2(logits - _down(base, logits.shape)), jnp.exp2(top - base)
    total = total * fades + p.sum(axis=1)
    plgpu.barrier_wait(smem["v there"].at[place])
    y = added(shape.device, y * _down(fades, y.shape), p.astype(shape.dtype), smem["v"].at[place])
    plgpu.barrier_arrive(smem["v done"].at[place])
    return y, new, total


def _bent(o: Options, products: Any) -> Any:
    """Logits times log2 e. The device's own tanh is off by 2^-11, which a soft cap of 30 would make 0.015."""
    if o.softcap is None:
        return products * np.float32(o.scale * LOG2_E)
    powers = jnp.exp2(products * np.float32(2 * o.scale / o.softcap * LOG2_E))
    return np.float32(o.softcap * LOG2_E) * (1 - 2 / (1 + powers))


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

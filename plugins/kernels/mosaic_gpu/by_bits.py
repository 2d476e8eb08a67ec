"""Products with packed weights, as `packed.py`, whose codes are made bfloat16 two at a time, by bits.

    yᵀ [out, N] = w [out, in] · xᵀ [in, N]

A 32-bit word has four or eight codes, and so two or four pairs, of which each takes a few operations (`elements.py`)
and a product with a scale (`factors.py`). What is multiplied are the definition's weights, rounded as it rounds them;
where a row or a matrix has one scale, products are multiplied with it.

Which column of a step is which of `wgmma`'s is free, as long as x is put in the same order (`arranged`). So a thread
takes 16 bytes of a row at once, under one scale or a few, and makes of each word what `wgmma` wants of it in as many
products: what is copied to shared memory is read once and without conflicts.

Where there are few rows of x, several blocks of the grid share a tile, each some steps of it, and their products are
added up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from plugins.kernels.mosaic_gpu import bits, factors
from plugins.kernels.mosaic_gpu.coding import PART, STEP, Coding
from plugins.kernels.mosaic_gpu.launch import COPIES, SWIZZLE, WARPGROUP, Device, registers, tiled
from plugins.kernels.mosaic_gpu.products import ACROSS, HIGH, ROWS, added_transposed, laid
from plugins.kernels.mosaic_gpu.ring import Ring
from plugins.kernels.pallas.blocks import padded
from plugins.kernels.pallas.decode import by_row, factor, seconds, values

Refs = Mapping[str, Any]
MOST_AHEAD: Final = 8
FEW: Final = 32  # rows of x, up to which waiting for memory decides: several blocks a multiprocessor
# By rows of x, at most: warpgroups that multiply, at most, and bytes of shared memory of a block. Measured on an H200.
SHAPES: Final = {8: (1, 36 << 10), FEW: (2, 100 << 10), 128: (2, 220 << 10)}
BUSY: Final = 4 * 132  # blocks that keep a device busy: four for each multiprocessor of an H100
LEAST_STEPS: Final = 4  # of a block, where several share a tile
BOX: Final = 256  # along an axis, of what one copy takes


@dataclass(frozen=True)
class Tile:
    """What a block of the grid makes: 64 rows of yᵀ for each of `warpgroups`, of `high` columns.

    Attributes:
        shared: dtypes of what blocks of columns share, by name.
        steps: of a row; a block takes `each` of them.
        budget: bytes of shared memory, but for two steps at least.
        rounded: y is bfloat16 and not transposed; and `biased`, with what is added to it before it is rounded.
    """

    device: Device
    coding: Coding
    shared: Mapping[str, Any]
    steps: int
    each: int
    high: int
    warpgroups: int
    budget: int
    rounded: bool
    biased: bool

    @property
    def few(self) -> bool:
        return self.high <= FEW

    @property
    def ahead(self) -> int:
        """Steps that shared memory has room for; of few rows a power of two, as places are counted modulo that."""
        beside = (2 if self.rounded else 4) * self.high
        by_step = PART * len(self.shared) if self.coding.by_step else 0
        whole = 0 if self.coding.by_step else self.coding.row_nbytes
        one = 2 * self.coding.columns * self.high + self.warpgroups * HIGH * (STEP + by_step)
        room: int = (self.budget - self.warpgroups * HIGH * (whole + beside)) // one
        room = 1 << max(1, room).bit_length() - 1 if self.few else room
        return max(2, min(MOST_AHEAD if self.few else MOST_AHEAD // 2, room))

    def scratch(self) -> dict[str, Any]:
        """Shared memory and barriers of a block, by name."""
        ahead, across, coding = self.ahead, self.warpgroups, self.coding
        y = tiled((across, self.high, HIGH), jnp.bfloat16) if self.rounded else None
        beside: dict[str, Any] = {}
        for name, kind in self.shared.items():
            of = (ahead, across, HIGH, coding.across(name)) if coding.by_step else (across, coding.blocks, HIGH)
            beside[name] = plgpu.SMEM(of, kind)
        if self.biased:
            beside["bias"] = plgpu.SMEM((across, HIGH), jnp.float32)
        each = 1 + len(self.shared) if coding.by_step else 1
        copies = self.biased if coding.by_step else len(self.shared) * -(-coding.blocks // BOX) + self.biased
        if copies:
            beside["beside there"] = plgpu.Barrier(num_arrivals=across * copies)
        return {
            "x": tiled((ahead, self.high, coding.columns), jnp.bfloat16),
            "codes": plgpu.SMEM((ahead, across, HIGH, STEP), jnp.uint8), **beside,
            "y": tiled((across, HIGH, self.high), jnp.float32) if y is None else y,
            "there": plgpu.Barrier(num_arrivals=1 + across * each, num_barriers=ahead),
            "done": plgpu.Barrier(num_arrivals=across, num_barriers=ahead),
        }  # fmt: skip

    def ring(self, smem: Refs) -> Ring:
        return Ring(self.ahead, smem["there"], smem["done"])


def arranged(x: Any, coding: Coding) -> Any:
    """`[N, columns]` of `x` `[N, in]`, made longer with zeros, in the order of a step's codes in registers."""
    x = padded(x, {1: coding.columns})
    # A thread of four has four words, of whose codes those half a word apart are a pair.
    apart = x.reshape(len(x), -1, 4, 4, 2, 16 // coding.of.bits)
    return apart.transpose(0, 1, 3, 5, 2, 4).reshape(x.shape)


def after(w: Any, coding: Coding) -> Any:
    """float32 `[E, out]` that products are multiplied with, or None: of weights `[E, out, in]` second scales, and those
    that a whole row has."""
    found = None if w.second is None else seconds(w)
    if coding.scale is not None:
        return found
    once = factor(by_row(w.scales, w.scheme, w.shape[-2]), w.scheme.scale)[..., 0]
    return once if found is None else found * once


def products(
    device: Device, x: Any, w: Any, coding: Coding, high: int, matrix: Any, bias: Any = None, *, rounded: bool = False
) -> Any:
    """`[N, out]`, float32 or, `rounded`, bfloat16, of bfloat16 `x` `[N, columns]`, `arranged`, N a multiple of `high`,
    times matrices, transposed, of a QTensor `[E, out, in]` of that coding, without what comes `after`.

    Args:
        matrix: int32 `[N / high]`, which matrix that is for each `high` rows; where there is no such matrix, all is 0,
            or anything where there is a bias.
        bias: `[E, out]`, added before rounding; only where it is `rounded`.
        rounded: only of more than `FEW` rows.
    """
    codes, out = w.codes, w.shape[-2]
    shared = {name: _shared(w.component(name), w.scheme, out, coding) for name in coding.shared}
    if device.interpreted:  # a copy past the end gives zeros on a device alone
        codes = padded(codes, {-1: STEP})
    most, budget = next(shape for rows, shape in SHAPES.items() if high <= rows)
    warpgroups = most if out % (most * HIGH) == 0 else 1
    steps = -(-w.codes.shape[-1] // STEP)
    points = len(x) // high * (out // (HIGH * warpgroups))
    splits = min(max(1, steps // LEAST_STEPS), -(-BUSY // points)) if high <= FEW else 1
    each = -(-steps // splits)
    splits = -(-steps // each)
    kinds = {name: a.dtype for name, a in shared.items()}
    tile = Tile(device, coding, kinds, steps, each, high, warpgroups, budget, rounded, bias is not None)
    scratch = tile.scratch()
    args = {"matrix": matrix, "x": x, "codes": codes, **shared}
    if bias is not None:
        args["bias"] = bias.astype(jnp.float32)
    shape, kind = ((len(x), out), jnp.bfloat16) if rounded else ((splits, out, len(x)), jnp.float32)
    order = (*args, "y")

    def body(*refs: Any) -> None:
        gmem, smem = refs[: len(order)], refs[len(order) :]
        _multiplied(tile, len(codes), dict(zip(order, gmem, strict=True)), dict(zip(scratch, smem, strict=True)))

    (y,) = device.call(
        body, [(shape, kind)], list(args.values()),
        grid={"tile": len(x) // high, "out": out // (HIGH * warpgroups), "split": splits}, warpgroups=warpgroups + 1,
        scratch=list(scratch.values()),
    )  # fmt: skip
    if rounded:
        return y
    return y.sum(axis=0).T if splits > 1 else y[0].T


def _shared(shared: Any, scheme: Any, out: int, coding: Coding) -> Any:
    """What blocks share as it is copied: `[E, out, blocks]`, or that of 64 rows one after the other, `[E, out / 64,
    blocks, 64]`."""
    if shared.dtype.itemsize == 1:
        shared = lax.bitcast_convert_type(shared, jnp.uint8)
    shared = by_row(shared, scheme, out)
    return shared if coding.by_step else shared.reshape(len(shared), out // HIGH, shared.shape[-1], HIGH)


def _multiplied(t: Tile, matrices: int, gmem: Refs, smem: Refs) -> None:
    tile, out, split = (lax.axis_index(name) for name in ("tile", "out", "split"))
    mine = lax.axis_index(WARPGROUP)
    matrix = gmem["matrix"][tile]
    first = split * np.int32(t.each)
    steps = jnp.where(matrix < matrices, jnp.minimum(np.int32(t.each), np.int32(t.steps) - first), np.int32(0))

    @pl.when(mine < t.warpgroups)
    def _() -> None:
        if not t.few:
            plgpu.set_max_registers(registers(t.warpgroups), action="increase")

        if "beside there" in smem:

            @pl.when(steps > 0)
            def _() -> None:
                plgpu.barrier_wait(smem["beside there"])

        def step(k: Any, place: Any, total: Any) -> Any:
            at = (place, mine) if t.coding.by_step else (mine,)
            shared = {name: smem[name].at[at] for name in t.shared}
            weights = decoded(t, smem["codes"].at[place, mine], shared, first + k)
            return added_transposed(t.device, total, [(weights, smem["x"].at[place])])

        zeros = laid(t.device, jnp.zeros((HIGH, t.high), jnp.float32), ACROSS)
        y = t.ring(smem).read(steps, step, zeros)
        later = factors.later(t.coding.of, t.coding.scale)
        if later != 1 and not t.device.interpreted:
            y = y * later
        rows, columns = pl.ds((out * t.warpgroups + mine) * HIGH, HIGH), pl.ds(tile * t.high, t.high)
        if t.biased:
            bias = laid(t.device, smem["bias"][mine], ROWS)
            y = y + lax.broadcast_in_dim(bias, y.shape, [0])
        if t.rounded:
            turned(t.device, y.astype(jnp.bfloat16), smem["y"].at[mine])
        else:
            smem["y"][mine] = y
        plgpu.commit_smem()  # type: ignore[no-untyped-call]
        there = gmem["y"].at[columns, rows] if t.rounded else gmem["y"].at[split, rows, columns]
        plgpu.copy_smem_to_gmem(smem["y"].at[mine], there)
        plgpu.wait_smem_to_gmem(0)

    @pl.when(mine == t.warpgroups)
    def _() -> None:
        if not t.few:
            plgpu.set_max_registers(COPIES, action="decrease")
        _copied(t, gmem, smem, (matrix, tile, out), first, steps)


def _copied(t: Tile, gmem: Refs, smem: Refs, of: tuple[Any, Any, Any], first: Any, steps: Any) -> None:
    """What the warpgroup does that copies."""
    matrix, tile, out = of

    @pl.when(steps > 0)
    def _() -> None:
        for w in range(t.warpgroups):
            for name in () if t.coding.by_step else t.shared:
                for start in range(0, t.coding.blocks, BOX):
                    some = pl.ds(start, min(BOX, t.coding.blocks - start))
                    theirs = gmem[name].at[matrix, out * t.warpgroups + w, some]
                    plgpu.copy_gmem_to_smem(theirs, smem[name].at[w, some], smem["beside there"])
            if t.biased:
                rows = pl.ds((out * t.warpgroups + w) * HIGH, HIGH)
                plgpu.copy_gmem_to_smem(gmem["bias"].at[matrix, rows], smem["bias"].at[w], smem["beside there"])

    def step(k: Any, place: Any, there: Any) -> None:
        for w in range(t.warpgroups):
            rows = pl.ds((out * t.warpgroups + w) * HIGH, HIGH)
            theirs = gmem["codes"].at[matrix, rows, pl.ds((first + k) * STEP, STEP)]
            plgpu.copy_gmem_to_smem(theirs, smem["codes"].at[place, w], there)
            for name in t.shared if t.coding.by_step else ():
                across = t.coding.across(name)
                part = lax.div((first + k) * np.int32(t.coding.columns), np.int32(t.coding.held * across))
                theirs = gmem[name].at[matrix, rows, pl.ds(part * across, across)]
                plgpu.copy_gmem_to_smem(theirs, smem[name].at[place, w], there)
        columns = t.coding.columns
        of_x = gmem["x"].at[pl.ds(tile * t.high, t.high), pl.ds((first + k) * columns, columns)]
        plgpu.copy_gmem_to_smem(of_x, smem["x"].at[place], there)

    t.ring(smem).fill(steps, step)


def decoded(t: Tile, codes: Any, shared: Refs, k: Any) -> Any:
    """bfloat16 `[64, columns]` in registers, of step `k`: of references to its codes `[64, 64]` and to all of what the
    blocks of the rows share."""
    if t.device.interpreted:
        return _decoded_by_values(t.coding, codes[...], {name: ref[...] for name, ref in shared.items()}, k)
    found = plgpu.ShapeDtypeStruct((HIGH, t.coding.columns), jnp.bfloat16, layout=ACROSS)
    types = *[plgpu.RefType()] * (1 + len(shared)), plgpu.Layout.WG_SPLAT(())
    inline: Any = plgpu.inline_mgpu(arg_types=types, return_type=found)  # type: ignore[no-untyped-call]

    def by_bits(_: Any, codes: Any, *more: Any) -> Any:
        *refs, k = more
        return bits.decoded(t.coding, codes, dict(zip(shared, refs, strict=True)), k)

    return inline(by_bits)(codes, *shared.values(), k)


def _decoded_by_values(coding: Coding, codes: Any, shared: Mapping[str, Any], k: Any) -> Any:
    """The same where kernels are interpreted."""
    width = coding.of.bits
    apart = jnp.stack([codes >> at & (1 << width) - 1 for at in range(0, 8, width)], axis=-1).astype(jnp.int32)
    v = values(apart.reshape(HIGH, coding.columns), coding.element)
    if shared:
        block = jnp.minimum((k * coding.columns + jnp.arange(coding.columns)) // coding.held, coding.blocks - 1)
        of_column = {}
        for name, a in shared.items():
            across = coding.across(name)
            of_column[name] = a.reshape(HIGH, across)[:, block % across if coding.by_step else block]
        if "zeros" in of_column:
            v = v - of_column["zeros"].astype(jnp.float32)
        if coding.scale is not None:
            v = v * factor(of_column["scales"], coding.scale)
        if coding.scale == "e8m0":  # 2^-127 itself is subnormal
            v = jnp.where(of_column["scales"] == 0, v * np.float32(0.5), v)
    return arranged(v.astype(jnp.bfloat16), coding)


def turned(device: Device, y: Any, ref: Any) -> None:
    """bfloat16 `y` `[64, N]` as `wgmma` leaves it, transposed to shared memory `[N, 64]`, `tiled`."""
    if device.interpreted:
        ref[...] = y.T
        return
    lies = plgpu.TilingTransform((8, HIGH)), plgpu.SwizzleTransform(SWIZZLE)
    inline: Any = plgpu.inline_mgpu(arg_types=(ACROSS, plgpu.RefType(lies)))  # type: ignore[no-untyped-call]
    inline(lambda _, *args: bits.turned(*args))(y, ref)

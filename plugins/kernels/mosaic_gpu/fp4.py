"""Products with MXFP4 and NVFP4 weights: as `packed.py`, with codes made bfloat16 two at a time, by bits.

    yᵀ [out, N] = w [out, in] · xᵀ [in, N]

E2M1 is what bfloat16's exponents have below 2^-124, and its subnormal is bfloat16's: with sign, exponent and mantissa
at their places in a word a code is 2^-126 times what it says, and a product with the scale times 2^126 is exact. A
32-bit word has eight codes, and so four pairs, each of which takes four operations in integers and a product. Where a
scale times 2^126 is no bfloat16, powers above 2^127 are multiplied with afterwards: those of MXFP4, which no published
model has, in a branch, and of NVFP4 2^8 of all, once a row.

Which column of a step is which of `wgmma`'s is free, as long as x is put in the same order (`arranged`). So a thread
takes 16 bytes of a row at once, under one scale (MXFP4) or two (NVFP4), and makes of each word what four of the eight
products of a step want of it: what is copied to shared memory is read once and without conflicts.

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

from plugins.kernels.mosaic_gpu import bits
from plugins.kernels.mosaic_gpu.bits import COLUMNS, STEP
from plugins.kernels.mosaic_gpu.launch import COPIES, SWIZZLE, WARPGROUP, Device, registers, tiled
from plugins.kernels.mosaic_gpu.products import ACROSS, HIGH, ROWS, added_transposed, laid
from plugins.kernels.pallas.blocks import padded
from plugins.kernels.pallas.decode import factor, values

Refs = Mapping[str, Any]
MOST_AHEAD: Final = 8
FEW: Final = 32  # rows of x, up to which waiting for memory decides: several blocks a multiprocessor
# By rows of x, at most: warpgroups that multiply, at most, and bytes of shared memory of a block. Measured on an H200.
SHAPES: Final = {8: (1, 36 << 10), FEW: (2, 100 << 10), 128: (2, 220 << 10)}
BUSY: Final = 4 * 132  # blocks that keep a device busy: four for each multiprocessor of an H100
LEAST_STEPS: Final = 4  # of a block, where several share a tile
MOST_SCALES: Final = 32 << 10  # bytes of 64 rows, which shared memory has all of
BOX: Final = 256  # along an axis, of what one copy takes


def fits(scheme: Any, dtype: Any, out: int, n_in: int) -> bool:
    """Whether these kernels read such weights `[…, out, n_in]`, for x of `dtype`."""
    if scheme.element != "e2m1" or scheme.zero is not None or jnp.dtype(dtype) != jnp.bfloat16:
        return False
    if (scheme.scale, scheme.block_elems) not in (("e8m0", 32), ("e4m3", 16)) or scheme.block_rows != 1:
        return False
    blocks = n_in // scheme.block_elems
    # Copies begin at multiples of 128 bytes: the scales of a warpgroup's 64 rows are as many times 64.
    return out % HIGH == 0 and n_in % 32 == 0 and blocks % 2 == 0 and blocks * HIGH <= MOST_SCALES


@dataclass(frozen=True)
class Tile:
    """What a block of the grid makes: 64 rows of yᵀ for each of `warpgroups`, of `high` columns.

    Attributes:
        scale: kind of the scales, of which a row has `blocks`.
        steps: of a row; a block takes `each` of them.
        budget: bytes of shared memory, but for two steps at least.
        rounded: y is bfloat16 and not transposed; and `biased`, with what is added to it before it is rounded.
    """

    device: Device
    scale: str
    blocks: int
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
    def of_step(self) -> int:
        """Scales of a row."""
        return COLUMNS // (32 if self.scale == "e8m0" else 16)

    @property
    def ahead(self) -> int:
        """Steps that shared memory has room for; of few rows a power of two, as places are counted modulo that."""
        one = 2 * COLUMNS * self.high + self.warpgroups * HIGH * STEP
        beside = self.warpgroups * HIGH * (self.blocks + (2 if self.rounded else 4) * self.high)
        room: int = (self.budget - beside) // one
        room = 1 << max(1, room).bit_length() - 1 if self.few else room
        return max(2, min(MOST_AHEAD if self.few else MOST_AHEAD // 2, room))

    def scratch(self) -> dict[str, Any]:
        """Shared memory and barriers of a block, by name."""
        ahead, across = self.ahead, self.warpgroups
        y = tiled((across, self.high, HIGH), jnp.bfloat16) if self.rounded else None
        bias = {"bias": plgpu.SMEM((across, HIGH), jnp.float32)} if self.biased else {}
        return {
            "x": tiled((ahead, self.high, COLUMNS), jnp.bfloat16),
            "codes": plgpu.SMEM((ahead, across, HIGH, STEP), jnp.uint8),
            "scales": plgpu.SMEM((across, self.blocks, HIGH), jnp.uint8),
            "y": tiled((across, HIGH, self.high), jnp.float32) if y is None else y, **bias,
            "scales there": plgpu.Barrier(num_arrivals=across * (-(-self.blocks // BOX) + self.biased)),
            "there": plgpu.Barrier(num_arrivals=1 + across, num_barriers=ahead),
            "done": plgpu.Barrier(num_arrivals=across, num_barriers=ahead),
        }  # fmt: skip


def arranged(x: Any) -> Any:
    """`[N, columns]` of `x` `[N, in]`, made longer with zeros, in the order of a step's codes in registers."""
    x = padded(x, {1: COLUMNS})
    # A thread of four has four words of eight codes, of which those four apart are a pair.
    apart = x.reshape(len(x), -1, 4, 4, 2, 4)
    return apart.transpose(0, 1, 3, 5, 2, 4).reshape(x.shape)


def products(device: Device, x: Any, w: Any, high: int, matrix: Any, bias: Any = None, *, rounded: bool = False) -> Any:
    """`[N, out]`, float32 or, `rounded`, bfloat16, of bfloat16 `x` `[N, columns]`, `arranged`, N a multiple of `high`,
    times matrices, transposed, of a QTensor `[E, out, in]` that `fits`, without second scales.

    Args:
        matrix: int32 `[N / high]`, which matrix that is for each `high` rows; where there is no such matrix, all is 0,
            or anything where there is a bias.
        bias: `[E, out]`, added before rounding; only where it is `rounded`.
        rounded: only of more than `FEW` rows.
    """
    codes, scales, out = w.codes, w.scales, w.shape[-2]
    if w.scheme.scale == "e4m3":
        scales = lax.bitcast_convert_type(scales, jnp.uint8)
    blocks = scales.shape[-1]
    scales = scales.reshape(len(scales), out // HIGH, blocks, HIGH)  # those of 64 rows, one after the other
    if device.interpreted:  # a copy past the end gives zeros on a device alone
        codes = padded(codes, {-1: STEP})
    most, budget = next(shape for rows, shape in SHAPES.items() if high <= rows)
    warpgroups = most if out % (most * HIGH) == 0 else 1
    steps = -(-w.codes.shape[-1] // STEP)
    points = len(x) // high * (out // (HIGH * warpgroups))
    splits = min(max(1, steps // LEAST_STEPS), -(-BUSY // points)) if high <= FEW else 1
    each = -(-steps // splits)
    splits = -(-steps // each)
    tile = Tile(device, w.scheme.scale, blocks, steps, each, high, warpgroups, budget, rounded, bias is not None)
    scratch = tile.scratch()
    args = {"matrix": matrix, "x": x, "codes": codes, "scales": scales}
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

        @pl.when(steps > 0)
        def _() -> None:
            plgpu.barrier_wait(smem["scales there"])

        def more(k: Any, total: Any) -> Any:
            place = lax.rem(k, np.int32(t.ahead))
            plgpu.barrier_wait(smem["there"].at[place])
            codes = decoded(t, smem["codes"].at[place, mine], smem["scales"].at[mine], first + k)
            total = added_transposed(t.device, total, [(codes, smem["x"].at[place])])
            plgpu.barrier_arrive(smem["done"].at[place])
            return total

        zeros = laid(t.device, jnp.zeros((HIGH, t.high), jnp.float32), ACROSS)
        y = lax.fori_loop(0, steps, more, zeros)
        if t.scale == "e4m3" and not t.device.interpreted:
            y = y * bits.NVFP4_LATER
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
            for start in range(0, t.blocks, BOX):
                some = pl.ds(start, min(BOX, t.blocks - start))
                theirs = gmem["scales"].at[matrix, out * t.warpgroups + w, some]
                plgpu.copy_gmem_to_smem(theirs, smem["scales"].at[w, some], smem["scales there"])
            if t.biased:
                rows = pl.ds((out * t.warpgroups + w) * HIGH, HIGH)
                plgpu.copy_gmem_to_smem(gmem["bias"].at[matrix, rows], smem["bias"].at[w], smem["scales there"])

    def step(k: Any, carry: None) -> None:
        place = lax.rem(k, np.int32(t.ahead))

        @pl.when(k >= t.ahead)
        def _() -> None:
            plgpu.barrier_wait(smem["done"].at[place])

        there = smem["there"].at[place]
        for w in range(t.warpgroups):
            rows = pl.ds((out * t.warpgroups + w) * HIGH, HIGH)
            theirs = gmem["codes"].at[matrix, rows, pl.ds((first + k) * STEP, STEP)]
            plgpu.copy_gmem_to_smem(theirs, smem["codes"].at[place, w], there)
        of_x = gmem["x"].at[pl.ds(tile * t.high, t.high), pl.ds((first + k) * COLUMNS, COLUMNS)]
        plgpu.copy_gmem_to_smem(of_x, smem["x"].at[place], there)

    def end(k: Any, carry: None) -> None:
        plgpu.barrier_wait(smem["done"].at[lax.rem(k, np.int32(t.ahead))])

    lax.fori_loop(0, steps, step, None)
    lax.fori_loop(jnp.maximum(steps - t.ahead, 0), steps, end, None)  # all that was said was heard


def decoded(t: Tile, codes: Any, scales: Any, k: Any) -> Any:
    """bfloat16 `[64, 128]` in registers, of step `k`: of references to its codes `[64, 64]` and to all scales of the
    rows."""
    if t.device.interpreted:
        return _decoded_by_values(t, codes[...], scales[...], k)
    found = plgpu.ShapeDtypeStruct((HIGH, COLUMNS), jnp.bfloat16, layout=ACROSS)
    types = plgpu.RefType(), plgpu.RefType(), plgpu.Layout.WG_SPLAT(())
    inline: Any = plgpu.inline_mgpu(arg_types=types, return_type=found)  # type: ignore[no-untyped-call]
    return inline(lambda _, *args: bits.decoded(t.scale, t.of_step, t.blocks, *args))(codes, scales, k)


def _decoded_by_values(t: Tile, codes: Any, scales: Any, k: Any) -> Any:
    """The same where kernels are interpreted."""
    nibbles = jnp.stack([codes & 15, codes >> 4], axis=-1).astype(jnp.int32)
    inside = jnp.arange(COLUMNS) * t.of_step // COLUMNS
    block = jnp.minimum(k * t.of_step + inside, t.blocks - 1)
    row = jnp.arange(HIGH)[:, None]
    scale = scales.reshape(-1)[row * t.blocks + block[None]]
    v = values(nibbles.reshape(HIGH, COLUMNS), "e2m1") * factor(scale, t.scale)
    if t.scale == "e8m0":  # 2^-127 itself is subnormal
        v = jnp.where(scale == 0, v * np.float32(0.5), v)
    return arranged(v.astype(jnp.bfloat16))


def turned(device: Device, y: Any, ref: Any) -> None:
    """bfloat16 `y` `[64, N]` as `wgmma` leaves it, transposed to shared memory `[N, 64]`, `tiled`."""
    if device.interpreted:
        ref[...] = y.T
        return
    lies = plgpu.TilingTransform((8, HIGH)), plgpu.SwizzleTransform(SWIZZLE)
    inline: Any = plgpu.inline_mgpu(arg_types=(ACROSS, plgpu.RefType(lies)))  # type: ignore[no-untyped-call]
    inline(lambda _, *args: bits.turned(*args))(y, ref)

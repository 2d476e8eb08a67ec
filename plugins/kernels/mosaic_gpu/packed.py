"""Products with packed weights: codes are copied to shared memory as they lie, and decoded in registers, which are the
left side of `wgmma`; no array of decoded weights exists, of whatever size.

    yᵀ [out, N] = w [out, in] · xᵀ [in, N]

A block of the grid makes 64 rows of yᵀ for each warpgroup that multiplies, and `high` columns, with the weights of one
matrix of a stack, or of the only one. One more warpgroup copies, `ahead` steps before they are read, `step` bytes of
each row of codes, what these share scales with, and the same columns of x. As in `plugins/kernels/pallas/decode.py`,
which lays weights out, codes are not put back in order: those of the same place in a byte are one plane, and x has been
taken apart alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipeline.tensors.scheme import Scheme
from plugins.kernels.mosaic_gpu import by_bits
from plugins.kernels.mosaic_gpu.coding import coding_of
from plugins.kernels.mosaic_gpu.launch import COPIES, WARPGROUP, Device, registers, tiled
from plugins.kernels.mosaic_gpu.products import ACROSS, HIGH, ROWS, added_transposed, laid
from plugins.kernels.mosaic_gpu.ring import Ring
from plugins.kernels.pallas.decode import Tiles, factor, values

Refs = Mapping[str, Any]
STEPS = (64, 32)  # bytes of a row of codes in a step: 64 values of a plane of x fill a swizzled row of 128 bytes
MOST_AHEAD = 4
BUDGET = 200 << 10  # bytes of shared memory that a block takes, of the 227 KiB that it may


@dataclass(frozen=True)
class Packed:
    """How weights are read, and by how much at a time.

    Attributes:
        scheme: of codes in planes; `rescaled`: without scales, which products are multiplied with afterwards.
        step, steps: bytes of a row of codes that are read at a time, and how often.
        held: bytes of a row of codes under one scale; 0: no scales are read.
        shared: names and dtypes of what codes share, `scales` and `zeros`.
        high: rows of x.
        warpgroups: that multiply.
    """

    device: Device
    scheme: Scheme
    rescaled: bool
    dtype: Any
    step: int
    steps: int
    held: int
    shared: tuple[tuple[str, Any], ...]
    high: int
    warpgroups: int

    @property
    def planes(self) -> int:
        return 8 // self.scheme.element_bits

    @property
    def blocks(self) -> int:
        """Scales of a row in a step."""
        return max(1, self.step // self.held)

    @property
    def ahead(self) -> int:
        """Steps that shared memory has room for."""
        x = self.planes * self.high * self.step * jnp.dtype(self.dtype).itemsize
        beside = sum(self.blocks * jnp.dtype(dtype).itemsize for _, dtype in self.shared)
        one: int = x + self.warpgroups * HIGH * (self.step + beside)
        return max(2, min(MOST_AHEAD, (BUDGET - 4 * self.warpgroups * HIGH * self.high) // one))

    def scratch(self) -> dict[str, Any]:
        """Shared memory and barriers of a block, by name."""
        ahead, across = self.ahead, self.warpgroups
        of_each = {name: plgpu.SMEM((ahead, across, self.blocks, HIGH), dtype) for name, dtype in self.shared}
        # Of x each plane is memory of its own: what `run_state` has of its surroundings must not be a number (0.10.2).
        x = {f"x{n}": tiled((ahead, self.high, self.step), self.dtype) for n in range(self.planes)}
        return {
            **x, "codes": plgpu.SMEM((ahead, across, HIGH, self.step), jnp.uint8), **of_each,
            "y": tiled((across, HIGH, self.high), jnp.float32),
            "there": plgpu.Barrier(num_arrivals=self.planes + across * (1 + len(self.shared)), num_barriers=ahead),
            "done": plgpu.Barrier(num_arrivals=across, num_barriers=ahead),
        }  # fmt: skip

    def ring(self, smem: Refs) -> Ring:
        return Ring(self.ahead, smem["there"], smem["done"])


def prepared(x: Any, w: Any) -> Any:
    """`x` `[N, in]` as `products` wants it for such weights: row by row, so that rows may be chosen afterwards."""
    coding = coding_of(w.scheme, x.dtype, *w.shape[-2:])
    return x if coding is None else by_bits.arranged(x, coding)


def products(device: Device, x: Any, w: Any, high: int, matrix: Any) -> Any:
    """float32 `[N, out]` of `x` `[N, in]`, `prepared`, N a multiple of `high`, times matrices, transposed, of a QTensor
    `[E, out, in]`, or `[out, in]` for the only one.

    Args:
        matrix: int32 `[N / high]`, which matrix that is for each `high` rows; where there is no such matrix, all is 0.
    """
    out = w.shape[-2]
    coding = coding_of(w.scheme, x.dtype, *w.shape[-2:])
    if coding is not None:  # then x is arranged
        stack = w if w.codes.ndim == 3 else jax.tree.map(lambda a: a[None], w)
        y = by_bits.products(device, x, stack, coding, high, matrix)
        return _times(y, by_bits.after(stack, coding), high, matrix)
    warpgroups = 2 if out % (2 * HIGH) == 0 else 1
    tiles = Tiles.of(w, HIGH * warpgroups)
    assert tiles.scheme is not None
    alone = w.codes.ndim == 2
    codes, *shared = (a[None] if alone else a for a in tiles.arrays)
    names = ["zeros"] if tiles.rescaled else ["scales", "zeros"]
    columns = codes.shape[-1]
    held = tiles.step // tiles.across if tiles.across else 0
    named = dict(zip(names, (jnp.swapaxes(a, -1, -2) for a in shared), strict=False))
    step = next(n for n in STEPS if columns % n == 0)
    p = Packed(
        device, tiles.scheme, tiles.rescaled, x.dtype, step, columns // step, held or columns,
        tuple((name, a.dtype) for name, a in named.items()), high, warpgroups,
    )  # fmt: skip
    planes = tiles.planes(x)
    scratch = p.scratch()
    args = {"matrix": matrix, "x": planes, "codes": codes, **named}
    order = (*args, "y")

    def body(*refs: Any) -> None:
        gmem, smem = refs[: len(order)], refs[len(order) :]
        _multiplied(p, len(codes), dict(zip(order, gmem, strict=True)), dict(zip(scratch, smem, strict=True)))

    (y,) = device.call(
        body, [((codes.shape[-2], len(x)), jnp.float32)], list(args.values()),
        grid={"tile": len(x) // high, "out": codes.shape[-2] // (HIGH * warpgroups)}, warpgroups=warpgroups + 1,
        scratch=list(scratch.values()),
    )  # fmt: skip
    after = tiles.after[None] if alone and tiles.after is not None else tiles.after
    return _times(y[:out].T, after, high, matrix)


def _times(y: Any, after: Any, high: int, matrix: Any) -> Any:
    """`y` `[N, out]` times what rows of matrices `[E, out]` are multiplied with afterwards, or None."""
    return y if after is None else y * jnp.repeat(after[jnp.minimum(matrix, len(after) - 1)], high, axis=0)


def _multiplied(p: Packed, matrices: int, gmem: Refs, smem: Refs) -> None:
    tile, out, mine = lax.axis_index("tile"), lax.axis_index("out"), lax.axis_index(WARPGROUP)
    matrix = gmem["matrix"][tile]
    steps = jnp.where(matrix < matrices, np.int32(p.steps), np.int32(0))

    @pl.when(mine < p.warpgroups)
    def _() -> None:
        plgpu.set_max_registers(registers(p.warpgroups), action="increase")

        def step(k: Any, place: Any, total: Any) -> Any:
            planes = _decoded(p, smem, (place, mine))
            return added_transposed(p.device, total, [(a, smem[f"x{n}"].at[place]) for n, a in enumerate(planes)])

        zeros = laid(p.device, jnp.zeros((HIGH, p.high), jnp.float32), ACROSS)
        smem["y"][mine] = p.ring(smem).read(steps, step, zeros)
        plgpu.commit_smem()  # type: ignore[no-untyped-call]
        rows, columns = pl.ds((out * p.warpgroups + mine) * HIGH, HIGH), pl.ds(tile * p.high, p.high)
        plgpu.copy_smem_to_gmem(smem["y"].at[mine], gmem["y"].at[rows, columns])
        plgpu.wait_smem_to_gmem(0)

    @pl.when(mine == p.warpgroups)
    def _() -> None:
        plgpu.set_max_registers(COPIES, action="decrease")
        _copied(p, gmem, smem, (matrix, tile, out), steps)


def _copied(p: Packed, gmem: Refs, smem: Refs, of: tuple[Any, Any, Any], steps: Any) -> None:
    """What the warpgroup does that copies."""
    matrix, tile, out = of

    def step(k: Any, place: Any, there: Any) -> None:
        columns = pl.ds(k * p.step, p.step)
        blocks = pl.ds(lax.div(k * p.step, np.int32(p.held)), p.blocks)
        for n in range(p.planes):
            of_x = gmem["x"].at[n, pl.ds(tile * p.high, p.high), columns]
            plgpu.copy_gmem_to_smem(of_x, smem[f"x{n}"].at[place], there)
        for w in range(p.warpgroups):
            rows = pl.ds((out * p.warpgroups + w) * HIGH, HIGH)
            plgpu.copy_gmem_to_smem(gmem["codes"].at[matrix, rows, columns], smem["codes"].at[place, w], there)
            for name, _ in p.shared:
                plgpu.copy_gmem_to_smem(gmem[name].at[matrix, blocks, rows], smem[name].at[place, w], there)

    p.ring(smem).fill(steps, step)


def _decoded(p: Packed, smem: Refs, at: tuple[Any, Any]) -> list[Any]:
    """The planes `[64, step]` of x's dtype of a step, in registers."""
    bits, scheme = p.scheme.element_bits, p.scheme
    codes = smem["codes"][at].astype(jnp.int32)
    rows = {name: [laid(p.device, smem[name][*at, b], ROWS) for b in range(p.blocks)] for name, _ in p.shared}
    column = lax.broadcasted_iota(jnp.int32, codes.shape, 1)

    def spread(each: Sequence[Any]) -> Any:
        """`[64, step]` of what rows have, `[64]`, for one block of columns after the other."""
        found = lax.broadcast_in_dim(each[0], codes.shape, [0])
        for block, one in enumerate(each[1:], 1):
            found = jnp.where(column < block * p.held, found, lax.broadcast_in_dim(one, codes.shape, [0]))
        return found

    zeros = spread([z.astype(jnp.float32) for z in rows["zeros"]]) if "zeros" in rows else None
    scales = rows.get("scales")
    power = None if scales is None else spread([factor(s, scheme.scale) for s in scales])
    half = None
    if scales is not None and scheme.scale == "e8m0":  # 2^-127 itself is subnormal
        half = spread([jnp.where(s.astype(jnp.int32) == 0, np.float32(0.5), np.float32(1)) for s in scales])
    found = []
    for plane in range(p.planes):
        code = (codes >> plane * bits) & ((1 << bits) - 1) if p.planes > 1 else codes
        v = values(code, scheme.element)
        v = v - zeros if scheme.zero == "int" else v
        v = v if half is None else v * half
        v = v if power is None else v * power
        v = v + zeros if scheme.zero == "min_f16" else v
        found.append(v.astype(p.dtype))
    return found

"""Mosaic GPU kernels where a program is compiled for them: lowered for NVIDIA's Hopper, interpreted on CPUs
(`interpreted.py`), which takes seconds for what a device does in microseconds, and is there to check them.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.extend.backend import get_default_device

from pipeline.errors import Unsupported
from plugins.kernels.mosaic_gpu.interpreted import interpreted
from plugins.kernels.platforms import chosen
from plugins.kernels.varying import along, axes_of, typed

HOPPER: Final = "9.0"  # `wgmma` is of sm_90a alone: later devices have another instruction in its place
SWIZZLE: Final = 128  # bytes at most across which rows are permuted in shared memory; wgmma reads the most fastest
COPIES: Final = 40  # registers of a thread that copies
WARPGROUP: Final = "warpgroup"  # the axis of a kernel's threads, which are warpgroups of 128 of the device's


@dataclass(frozen=True)
class Device:
    """What kernels are told of a device.

    Attributes:
        platform: as JAX names it.
        interpreted: kernels are run by JAX's interpreter, which lacks some of what they are made of (`products.py`).
    """

    platform: str
    interpreted: bool

    def call(
        self, body: Callable[..., None], results: Sequence[Any], args: Sequence[Any], *, grid: Mapping[str, int],
        warpgroups: int, scratch: Sequence[Any],
    ) -> tuple[Any, ...]:  # fmt: skip
        """What `body(*refs)` writes, once for every point of `grid` and each of so many `warpgroups`.

        Args:
            body: is handed references to arguments and results in global memory, then what `scratch` is made into.
            results: (shape, dtype) of each.
            grid: names of its axes, the fastest first, and their lengths.
            scratch: shared memory and barriers of a block.
        """
        axes = axes_of(*args)
        shapes = [typed(jax.ShapeDtypeStruct(shape, dtype), axes) for shape, dtype in results]  # type: ignore[no-untyped-call]
        args = along(axes, tuple(args))
        start = partial(
            plgpu.kernel, body, out_type=shapes, scratch_types=list(scratch), grid=tuple(grid.values()),
            grid_names=tuple(grid), num_threads=warpgroups, thread_name=WARPGROUP,
            compiler_params=plgpu.CompilerParams(
                approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Warpgroup
            ),
        )  # fmt: skip
        if not self.interpreted:
            return tuple(start()(*args))
        return tuple(jax.pure_callback(partial(interpreted, start), shapes, *args, vmap_method="sequential"))


DEVICES: Final = Device("cuda", False), Device("cpu", True)


@partial(jax.jit, static_argnums=(0, 1))
def everywhere(f: Callable[..., Any], how: Hashable, *args: Any) -> Any:
    """`f(how, device, *args)`, a tuple of arrays, for the device that is compiled for; traced once for all calls that
    are alike.

    Raises:
        Unsupported: while tracing, where JAX's default device is a GPU of another kind than Hopper; while lowering for
            a platform that none of `DEVICES` is of.
    """
    capability = getattr(get_default_device(), "compute_capability", HOPPER)
    if capability != HOPPER:
        raise Unsupported(
            f"Mosaic GPU kernels are for compute capability {HOPPER} (Hopper: H100, H200), and this GPU has "
            f"{capability}; kernels=xla runs there"
        )
    return chosen("Mosaic GPU", {device.platform: jax.jit(partial(f, how, device)) for device in DEVICES}, *args)


def registers(multiplying: int) -> int:
    """Of each thread of so many warpgroups that multiply, where one more copies with `COPIES`: a multiprocessor has 512
    for a thread of each (65536 in all, and 128 threads), given in eights, and a thread 255 at most."""
    return min(256, (512 - COPIES) // multiplying // 8 * 8)


def tiled(shape: Sequence[int], dtype: Any) -> Any:
    """Shared memory `[…, rows, columns]` as TMA writes and `wgmma` reads it: columns of 32 or 64 bytes, or of a
    multiple of 128."""
    itemsize = jnp.dtype(dtype).itemsize
    swizzle = min(SWIZZLE, shape[-1] * itemsize)
    lies = plgpu.TilingTransform((8, swizzle // itemsize)), plgpu.SwizzleTransform(swizzle)
    return plgpu.SMEM(tuple(shape), dtype, transforms=lies)

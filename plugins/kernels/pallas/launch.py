"""Pallas kernels on whatever device a program is compiled for: lowered for GPUs and TPUs, interpreted on CPUs.

Which of them is decided when the program is lowered (`plugins/kernels/platforms.py`). Interpreting computes what the
kernel says, block after block, as a loop of ordinary XLA: slow, and there to be checked.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu

from plugins.kernels.pallas import triton
from plugins.kernels.platforms import chosen
from plugins.kernels.varying import along, axes_of, typed


@dataclass(frozen=True)
class Device:
    """What kernels are told of a device.

    Attributes:
        platform: as JAX names it.
        lanes: what blocks have along the last axis, at least and in multiples, unless they have all of it.
        picks: which block a point is given may depend on scalars; elsewhere a kernel indexes what it has all of.
        overhangs: blocks may reach past the end of an array: what is read there is anything, what is written is lost.
        busy: points of a grid that keep it busy: two for each of an H100's 132 multiprocessors; a TPU's core does one
            after the other. On CPUs as on GPUs, as interpreting is for checking what runs there.
    """

    platform: str
    lanes: int
    overhangs: bool
    picks: bool
    busy: int

    def call(
        self, body: Callable[..., None], results: Sequence[Any], args: Sequence[Any], *, grid: tuple[int, ...],
        in_specs: Sequence[Any], out_specs: Sequence[Any], scalars: int = 0, warps: int = 4, stages: int = 2,
    ) -> tuple[Any, ...]:  # fmt: skip
        """What `body(*refs)` writes, once for every point of `grid`, whose points know nothing of each other.

        Args:
            results: (shape, dtype) of each.
            in_specs, out_specs: the block of each argument and result that a point is given, a `pl.BlockSpec`; not of
                `scalars`.
            scalars: how many of the arguments, the first, are integers that every point has all of. On TPUs blocks may
                depend on them: index maps have references to them after the grid's indices (`picks`).
            warps, stages: see `triton.parameters`.
        """
        axes = axes_of(*args)
        shapes = [typed(jax.ShapeDtypeStruct(shape, dtype), axes) for shape, dtype in results]  # type: ignore[no-untyped-call]
        lies: dict[str, Any] = {"grid": grid, "in_specs": list(in_specs), "out_specs": list(out_specs)}
        if scalars and self.picks:
            lies = {"grid_spec": tpu.PrefetchScalarGridSpec(num_scalar_prefetch=scalars, **lies)}
        elif scalars:
            lies["in_specs"] = [*(pl.BlockSpec(a.shape, _all(a.ndim)) for a in args[:scalars]), *in_specs]
        call = pl.pallas_call(
            body, out_shape=shapes, **lies,
            compiler_params=triton.parameters(warps, stages) if self.platform == triton.PLATFORM else None,
            interpret=self.platform == "cpu",
        )  # fmt: skip
        return tuple(call(*along(axes, tuple(args))))


# Of a reference where a block may reach past the end of an array and `Device.overhangs` is not: with a mask.
masked_load, masked_store = triton.load, triton.store


def _all(rank: int) -> Callable[..., tuple[int, ...]]:
    return lambda *_: (0,) * rank


BUSY: Final = 2 * 132
DEVICES: Final = (
    Device(triton.PLATFORM, 16, False, False, BUSY),
    Device("tpu", 128, True, True, 1),
    Device("cpu", 16, False, False, BUSY),
)


@partial(jax.jit, static_argnums=(0, 1))
def everywhere(f: Callable[..., Any], how: Hashable, *args: Any) -> Any:
    """`f(how, device, *args)`, a tuple of arrays, for the device that is compiled for; traced once for all calls that
    are alike, such as those of the layers of a model.

    Raises:
        Unsupported: while lowering for a platform that none of `DEVICES` is of.
    """
    return chosen("Pallas", {device.platform: jax.jit(partial(f, how, device)) for device in DEVICES}, *args)

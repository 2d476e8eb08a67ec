"""A Pallas kernel on whatever device a program is compiled for: lowered for GPUs and TPUs, interpreted on CPUs.

Which of them is decided when the program is lowered (`lax.platform_dependent`), so that one program can be lowered for a
device that is not here, and is (tests/unit/kernels/test_pallas_lowering.py). Interpreting computes what the kernel says,
block after block, as a loop of ordinary XLA: slow, and there to be checked.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.extend.core import Primitive
from jax.interpreters import mlir

from pipeline.errors import Unsupported
from plugins.kernels.pallas import triton
from plugins.kernels.varying import along, axes_of, typed

PLATFORMS: Final = (triton.PLATFORM, "tpu", "cpu")


def launch(
    body: Callable[..., None], results: Sequence[Any], args: Sequence[Any], *, grid: tuple[int, ...],
    in_specs: Sequence[Any], out_specs: Sequence[Any], warps: int = 4, stages: int = 2,
) -> list[Any]:  # fmt: skip
    """What `body(*refs)` writes, once for every point of `grid`, whose points know nothing of each other.

    Args:
        results: a `jax.ShapeDtypeStruct` of each result.
        in_specs, out_specs: the block of each argument and result that a point is given, a `pl.BlockSpec`.
        warps, stages: see `triton.parameters`.

    Raises:
        Unsupported: while lowering for a platform that is none of `PLATFORMS`.
    """
    axes = axes_of(*args)
    args = along(axes, tuple(args))
    shapes = [typed(result, axes) for result in results]

    def on(parameters: Any, interpret: bool, *args: Any) -> Any:
        return tuple(pl.pallas_call(
            body, out_shape=shapes, grid=grid, in_specs=list(in_specs), out_specs=list(out_specs),
            compiler_params=parameters, interpret=interpret,
        )(*args))  # fmt: skip

    return list(
        lax.platform_dependent(
            *args,
            cuda=partial(on, triton.parameters(warps, stages), False),
            tpu=partial(on, None, False),
            cpu=partial(on, None, True),
            default=lambda *args: tuple(_nowhere.bind(*args, results=tuple(shapes))),
        )
    )


_nowhere = Primitive("pallas_nowhere")
_nowhere.multiple_results = True


@_nowhere.def_abstract_eval
def _(*args: Any, results: tuple[Any, ...]) -> list[Any]:
    return [args[0].update(shape=r.shape, dtype=r.dtype) for r in results]


def _refuse(ctx: Any, *args: Any, results: Any) -> Any:
    platforms = ctx.platforms or ctx.module_context.platforms
    raise Unsupported(
        f"no Pallas kernels for {', '.join(platforms)}: they are lowered for {', '.join(PLATFORMS[:-1])}, "
        f"and interpreted on {PLATFORMS[-1]}; kernels=xla runs there"
    )


mlir.register_lowering(_nowhere, _refuse)

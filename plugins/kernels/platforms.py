"""One program for several platforms: which of several functions runs is decided when the program is lowered.

So a program can be lowered for a device that is not here, and is (tests/unit/kernels/test_pallas_lowering.py). What
`lax.platform_dependent` does by itself where there is no function for a platform is an error that names none.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from pipeline.errors import Unsupported


def chosen(kernels: str, here: Mapping[str, Callable[..., Any]], *args: Any) -> Any:
    """What the function of a platform gives of `args`, a tuple of arrays.

    Args:
        kernels: whose functions these are, for an error.
        here: by platforms as JAX names them, the last of which is where they are interpreted.

    Raises:
        Unsupported: while lowering for a platform that is not in `here`.
    """
    shapes = tuple(jax.eval_shape(here[tuple(here)[-1]], *args))  # jit remembers what it traced

    def nowhere(*args: Any) -> tuple[Any, ...]:
        leaves = jax.tree.leaves(args)
        return tuple(_nowhere.bind(*leaves, results=shapes, kernels=kernels, here=tuple(here)))  # type: ignore[no-untyped-call]

    return lax.platform_dependent(*args, **here, default=nowhere)


_nowhere = Primitive("kernels_nowhere")
_nowhere.multiple_results = True


def _like(*args: Any, results: tuple[Any, ...], **_: Any) -> list[Any]:
    return [args[0].update(shape=r.shape, dtype=r.dtype) for r in results]


def _refuse(ctx: Any, *args: Any, results: Any, kernels: str, here: tuple[str, ...]) -> Any:
    platforms = ctx.platforms or ctx.module_context.platforms
    *lowered, interpreted = here
    raise Unsupported(
        f"no {kernels} kernels for {', '.join(platforms)}: they are lowered for {', '.join(lowered)}, and interpreted "
        f"on {interpreted}; kernels=xla runs there"
    )


def _of_several(args: Any, dims: Any, *, results: Any, **more: Any) -> tuple[Any, list[int]]:
    """Under `vmap`: what is refused is refused of each."""
    many = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    each = tuple(jax.ShapeDtypeStruct((many, *r.shape), r.dtype) for r in results)  # type: ignore[no-untyped-call]
    return _nowhere.bind(*args, results=each, **more), [0] * len(each)  # type: ignore[no-untyped-call]


batching.primitive_batchers[_nowhere] = _of_several
_nowhere.def_abstract_eval(_like)  # type: ignore[no-untyped-call]
mlir.register_lowering(_nowhere, _refuse)

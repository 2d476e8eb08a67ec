"""Products by `wgmma`, and what stands for them where kernels are interpreted.

JAX's interpreter (0.10.2) knows `wgmma` of references alone, without transposed ones, no accumulator that begins with
anything but zeros (`run_state`), and no layouts. There the same product is made of what references hold, after the same
barriers; what it reads is seen by the detection of races, which `wgmma` in the interpreter is not.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from plugins.kernels.mosaic_gpu.launch import Device

HIGH = 64  # rows of a warpgroup: those of one `wgmma`
ACROSS = plgpu.Layout.WGMMA  # of `[M, N]` in a warpgroup's registers: M is a multiple of 64, N of 8
ROWS = ACROSS.reduce(1)  # of `[M]`, a number for each row of such a one
COLUMNS = ACROSS.reduce(0)  # of `[N]`


def laid(device: Device, value: Any, layout: Any) -> Any:
    """`value` in registers laid out so."""
    return value if device.interpreted else plgpu.layout_cast(value, layout)


def _nothing() -> None:
    """Is done between a product's begin and its end where nothing else is."""


def transposed(device: Device, a: Any, b: Any, begun: Callable[[], None] = _nothing) -> Any:
    """float32 `[M, N]`, a · bᵀ of references `a` `[M, K]` and `b` `[N, K]` to shared memory; `begun()` is done while
    it is made."""
    if device.interpreted:
        product = jnp.dot(a[...], b[...].T, preferred_element_type=jnp.float32)
        begun()
        return product

    def multiply(total: Any) -> Any:
        plgpu.wgmma(total, a, b.transpose((1, 0)))
        begun()
        return total[...]

    return pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef((a.shape[0], b.shape[0]), jnp.float32))


def transposed_while_added(
    device: Device, a: Any, b: Any, onto: tuple[Any, Any, Any], begun: Callable[[], None], then: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """(`then(a · bᵀ)`, `total` + p · v) of references `a` `[M, K]` and `b` `[N, K]`, and `onto`, which are `total`
    `[M, E]` and `p` `[M, S]` in registers, and a reference `v` `[S, E]`. Both products are begun, then `begun()` is
    done; `then` is, while the second is made."""
    total, p, v = onto
    if device.interpreted:
        product, sum_ = transposed(device, a, b), added(device, total, p, v)
        begun()
        return then(product), sum_

    def multiply(product: Any, sum_: Any) -> tuple[Any, Any]:
        sum_[...] = total
        plgpu.wgmma(product, a, b.transpose((1, 0)))
        plgpu.wgmma(sum_, p, v)
        begun()
        found = then(plgpu.wgmma_accumulator_load(product, wait_n=1))  # of two in flight, the one that began first
        return found, sum_[...]

    of = [plgpu.WGMMAAccumulatorRef(size, jnp.float32) for size in ((a.shape[0], b.shape[0]), total.shape)]
    return pl.run_scoped(multiply, *of)  # type: ignore[no-any-return]


def added(device: Device, total: Any, a: Any, b: Any) -> Any:
    """float32 `[M, N]`, `total` + a · b of `a` `[M, K]` in registers and a reference `b` `[K, N]` to shared memory."""
    if device.interpreted:
        return total + jnp.dot(a, b[...], preferred_element_type=jnp.float32)
    return pl.run_state(lambda sum_: plgpu.wgmma(sum_, a, b))(plgpu.WGMMAAccumulatorRef.init(total))  # type: ignore[no-untyped-call]


def added_transposed(device: Device, total: Any, pairs: Sequence[tuple[Any, Any]]) -> Any:
    """float32 `[M, N]`, `total` + Σ a · bᵀ of pairs, `a` `[M, K]` in registers and a reference `b` `[N, K]` to shared
    memory."""
    if device.interpreted:
        return total + sum(jnp.dot(a, b[...].T, preferred_element_type=jnp.float32) for a, b in pairs)

    def multiply(sum_: Any) -> None:
        for a, b in pairs:
            plgpu.wgmma(sum_, a, b.transpose((1, 0)))

    return pl.run_state(multiply)(plgpu.WGMMAAccumulatorRef.init(total))  # type: ignore[no-untyped-call]

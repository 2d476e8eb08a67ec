"""moe in C++, for weights in any format: two calls, one for all projections into the experts chosen and one for those
out of them.

Experts that nobody chose are not touched. A few tokens that share one share a pass over it; many share what is decoded
of it, a strip of rows at a time. The gradient is C++ too for plain weights (`native_gradient.py`), XLA's for others.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from plugins.kernels.gradients import cotangent, given, once, wanted
from plugins.kernels.moe import native_gradient
from plugins.kernels.moe.pairs import apart
from plugins.kernels.moe.xla import project
from plugins.kernels.moe.xla_gradient import gradients
from plugins.kernels.native import ffi
from plugins.kernels.native.gradients import takes
from plugins.kernels.varying import alike


def moe(
    x: Any,
    chosen: Any,
    weights: Any,
    w_in: Sequence[Any],
    b_in: Sequence[Any],
    w_out: Any,
    b_out: Any,
    *,
    activation: Callable[..., Any],
    out_dtype: Any = None,
) -> Any:
    """See the op's docstring."""
    return over(0, x, chosen, weights, w_in, b_in, w_out, b_out, activation, out_dtype)


def over(
    bits: int, x: Any, chosen: Any, weights: Any, w_in: Any, b_in: Any, w_out: Any, b_out: Any, activation: Any,
    out_dtype: Any,
) -> Any:  # fmt: skip
    """moe with activations of so many bits; see `ffi.grouped`."""
    x, chosen, weights = jnp.asarray(x), jnp.asarray(chosen), jnp.asarray(weights).astype(jnp.float32)
    activation, w_in, b_in = apart(activation, w_in, b_in, chosen.size)
    how = (activation, jnp.dtype(x.dtype if out_dtype is None else out_dtype), bits)
    return _moe(how, *alike(x, chosen, weights, tuple(w_in), tuple(b_in), w_out, b_out))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _moe(
    how: tuple[Any, Any, int], x: Any, chosen: Any, weights: Any, w_in: Any, b_in: Any, w_out: Any, b_out: Any
) -> Any:
    return _through(how, x, chosen, weights, w_in, b_in, w_out, b_out)[0]


def _through(
    how: tuple[Any, Any, int], x: Any, chosen: Any, weights: Any, w_in: Any, b_in: Any, w_out: Any, b_out: Any
) -> tuple[Any, list[Any]]:
    """The result, and of each projection in what went into the activation."""
    activation, dtype, bits = how
    expert = _experts(chosen, weights)

    def rounded(y: Any, b: Any, dtype: Any = x.dtype) -> Any:
        if b is not None:
            y = y + jnp.asarray(b).astype(jnp.float32)[jnp.maximum(expert, 0)]
        return y.astype(dtype)

    hidden = [rounded(y, b) for y, b in zip(ffi.grouped(x, expert, w_in, bits), b_in, strict=True)]
    (y,) = ffi.grouped(activation(*hidden), expert, [w_out], bits)
    y = rounded(y, b_out, dtype).astype(jnp.float32).reshape(*chosen.shape, -1)
    share = weights[:, :, None]
    return jnp.sum(jnp.where(share == 0, 0.0, y * share), axis=1).astype(dtype), hidden


def _experts(chosen: Any, weights: Any) -> Any:
    """int32 `[N · k]`. An assignment of weight 0 is none: its expert is not read."""
    return jnp.where(weights == 0, -1, chosen).reshape(-1).astype(jnp.int32)


def _forward(how: tuple[Any, Any, int], *args: Any) -> tuple[Any, Any]:
    x, _, weights, w_in, b_in, w_out, b_out = args
    asked = wanted(x, weights, *w_in, *b_in, w_out, b_out)
    y, hidden = _through(how, *given(args))
    plain = how[2] == 0 and how[1] != jnp.float16 and takes(*given((x, *w_in, w_out)), dtype=x.value.dtype)
    return y, (given(args), asked, hidden if plain else None)


@once
def _backward(how: tuple[Any, Any, int], kept: Any, dy: Any) -> tuple[Any, ...]:
    args, asked, hidden = kept
    if hidden is None:
        return gradients(how[0], how[1], project, args, asked.flags, cotangent(dy))
    return native_gradient.gradients(
        how[0], how[1], args, asked.flags, _experts(args[1], args[2]), hidden, cotangent(dy)
    )


_moe.defvjp(_forward, _backward, symbolic_zeros=True)

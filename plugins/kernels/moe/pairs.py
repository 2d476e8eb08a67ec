"""Gate and up whose rows take turns in one stack of weights, taken apart before they are multiplied.

Every second number of a row is slow to read: with many tokens it costs an activation, and its gradient, more than the
products do. Taking weights apart costs one copy of them, so that it pays where there are more numbers in activations.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp


def apart(
    activation: Callable[..., Any], w_in: Sequence[Any], b_in: Sequence[Any], assignments: int
) -> tuple[Callable[..., Any], Sequence[Any], Sequence[Any]]:
    """`activation`, `w_in` and `b_in` of the op, or the same of two stacks for one: where the activation says what it
    is of gate and up by themselves (`apart`), and weights are float32 and fewer than activations.

    Args:
        assignments: choices of all tokens.
    """
    of_two = getattr(activation, "apart", None)
    w, b = w_in[0], b_in[0]
    if of_two is None or len(w_in) != 1 or not isinstance(w, jax.Array) or w.dtype != jnp.float32:
        return activation, w_in, b_in
    if assignments < w.shape[0] * w.shape[2]:
        return activation, w_in, b_in
    both = (None, None) if b is None else (b[:, ::2], b[:, 1::2])
    return of_two, (w[:, ::2], w[:, 1::2]), both

"""Blocks that kernels are given: sides are powers of two, as Triton wants them, and fit what they are blocks of.

Arrays that no such block divides are made longer beforehand, a copy: models whose dimensions it divides pay nothing.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp


def power(n: int) -> int:
    """The least power of two that is not below `n`."""
    return 1 << max(0, n - 1).bit_length()


def divisor(n: int, most: int) -> int:
    """The largest power of two that divides `n`, at most `most`, itself one."""
    return min(most, n & -n) if n else most


def padded(array: Any, to: Mapping[int, int], fill: float = 0) -> Any:
    """`array` with each axis of `to` made longer, with `fill`, until it is a multiple."""
    more = {axis % array.ndim: -array.shape[axis] % multiple for axis, multiple in to.items()}
    if not any(more.values()):
        return array
    return jnp.pad(array, [(0, more.get(axis, 0)) for axis in range(array.ndim)], constant_values=fill)

"""moe in jnp: assignments sorted by expert, cut into tiles of one expert each, and a loop over the tiles there are.

How many tiles there are is known on the device only, so the loop is a `while`; what a tile needs has a static shape.
Work grows with tokens, not with experts: an expert that nobody chose costs nothing, and one that many chose is decoded
once for `tile_rows` of its tokens. (`jax.lax.ragged_dot` would want the weights decoded, and multiplies every token by
every expert on CPUs.)
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from plugins.kernels.matmul.xla_backend import product

MOST_ROWS = 128  # of a tile: more no longer pays for what a half-empty tile costs


def tile_rows(assignments: int, experts: int) -> int:
    """Rows of a tile: the power of two at an expert's share of the assignments."""
    share = max(1, assignments // max(1, experts))
    return min(MOST_ROWS, 1 << (share - 1).bit_length())


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
) -> Any:
    """See the op's docstring."""
    x, chosen, weights = jnp.asarray(x), jnp.asarray(chosen), jnp.asarray(weights).astype(jnp.float32)
    experts, d_out = w_out.shape[:2]
    tokens, k = chosen.shape
    total = tokens * k
    rows = tile_rows(total, experts)

    # Sorted by expert; what has no weight goes behind the last one.
    expert_of = jnp.where(weights == 0, experts, chosen).reshape(-1)
    order = jnp.argsort(expert_of)
    count = jnp.bincount(expert_of, length=experts)
    first = jnp.cumsum(count) - count
    tiles_until = jnp.cumsum(-(-count // rows))

    def tile(i: Any, out: Any) -> Any:
        e = jnp.searchsorted(tiles_until, i, side="right")
        within = i - (tiles_until[e] - -(-count[e] // rows))
        start = first[e] + within * rows
        # Rows past the expert's last belong to the next one, whose tile writes them again, later.
        here = jnp.minimum(start + jnp.arange(rows), total - 1)
        tile_x = x[order[here] // k]
        hidden = [project(tile_x, w, b, e) for w, b in zip(w_in, b_in, strict=True)]
        y = project(activation(*hidden), w_out, b_out, e)
        return lax.dynamic_update_slice_in_dim(out, y, start, 0)

    out = jnp.zeros((total + rows - 1, d_out), x.dtype)
    out = lax.fori_loop(0, tiles_until[-1], tile, out)
    place = jnp.zeros(total, order.dtype).at[order].set(jnp.arange(total, dtype=order.dtype), unique_indices=True)
    y = out[place].reshape(tokens, k, d_out).astype(jnp.float32)
    # What no tile wrote is 0, but what a tile wrote past its expert may be anything.
    y = jnp.where(weights[:, :, None] == 0, 0.0, y * weights[:, :, None])
    return jnp.sum(y, axis=1).astype(x.dtype)


def project(x: Any, w: Any, b: Any, e: Any) -> Any:
    """`matmul` with expert `e` (traced) of a stack of weights and biases."""
    y = product(x, w, e)
    if b is not None:
        y = y + lax.dynamic_index_in_dim(jnp.asarray(b), e, 0).astype(jnp.float32)
    return y.astype(x.dtype)

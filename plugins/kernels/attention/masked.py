"""attention by programs of others, which take a mask and know no positions: what `cudnn` and `tokamax` share.

Positions, of rings and of padding too, become a mask `[B, 1, T, S]`. Where they turn out to be those of a prompt read
from its beginning, one after the other, the program is told that it is causal instead, and leaves out what nobody sees;
both ways are in a compiled program, and one of them runs. A query that sees nothing, for which such programs give the
mean of what there is, gives 0.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
from jax import lax

from plugins.kernels.attention import xla
from plugins.kernels.pallas.blocks import padded
from plugins.kernels.varying import alike

DIMS = 8  # of a head, in multiples
EVEN = 2  # queries and slots, in multiples: cuDNN's gradient wants that; what is added sees and is seen by nothing


def attended(
    fused: Callable[..., Any], q: Any, k: Any, v: Any, q_positions: Any, k_positions: Any, *, window: int | None,
    causal: bool, segments: Any,
) -> Any:  # fmt: skip
    """See the op's docstring.

    Args:
        fused: `fused(q, k, v, mask, causal, window)` of arrays of one dtype, with as many dims each: `mask` bool
            `[B, 1, T, S]`; or None, and query t sees slot s ≤ t (`causal`), and s > t - `window`.
    """
    q, at, slot = (jnp.asarray(a) for a in (q, q_positions, k_positions))
    k, v = (jnp.asarray(a).astype(q.dtype) for a in (k, v))
    own = None if segments is None else jnp.asarray(segments)
    queries, slots, wide = q.shape[1], k.shape[1], v.shape[-1]
    if not q.size or not slots:
        return jnp.zeros((*q.shape[:-1], wide), q.dtype)
    dims = -(-max(q.shape[-1], wide) // DIMS) * DIMS
    q, k, v = (padded(a, {3: dims}) for a in (q, k, v))
    q, k, v, at, slot, own = alike(q, k, v, at, slot, own)

    def even(*arrays: Any) -> Iterator[Any]:
        return (padded(a, {1: EVEN}) for a in arrays)

    def masked() -> Any:
        seen = xla.mask(at, slot, window, causal)
        if own is not None:
            seen = seen & (own[:, :, None] == own[:, None, :])
        found = fused(*even(q, k, v), padded(seen, {1: EVEN, 2: EVEN})[:, None], False, None)[:, :queries]
        return jnp.where(seen.any(axis=2)[:, :, None, None], found, jnp.zeros_like(found))

    def in_order() -> Any:
        return fused(*even(q, k[:, :queries], v[:, :queries]), None, True, window)[:, :queries]

    if not causal or own is not None or not 1 < queries <= slots:
        return masked()[..., :wide]
    one_by_one = jnp.broadcast_to(jnp.arange(queries, dtype=at.dtype), at.shape)
    behind = slot[:, queries:]
    ordered = (at == one_by_one).all() & (slot[:, :queries] == one_by_one).all()
    ordered &= ((behind < 0) | (behind >= queries)).all()
    return lax.cond(ordered, in_order, masked)[..., :wide]

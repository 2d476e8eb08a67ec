"""Losses over a vocabulary, block by block of positions, so that the logits of all of them never exist together, neither
on the way forth nor on the way back.

    N positions, D hidden, V vocabulary
"""

from typing import Any

import jax
import jax.numpy as jnp

from plugins.models.common.decoder import Decoder


def next_token(
    model: Decoder, hidden: Any, targets: Any, weights: Any, z_loss: float, logits_nbytes: int
) -> tuple[Any, Any]:
    """Σ weight · (-log p(target) + z_loss · (log Σ exp(logits))²), and Σ weight of targets that are most probable.

    Args:
        hidden: `[B, T, D]`, after the last norm.
        targets: `[B, T]` int32.
        weights: `[B, T]` float32; 0: not counted.
    """

    def block(h: Any, target: Any, weight: Any) -> Any:
        logits = model.logits(h)
        total = jax.nn.logsumexp(logits, axis=-1)
        loss = total - jnp.take_along_axis(logits, target[:, None], axis=-1)[:, 0]
        if z_loss:
            loss = loss + z_loss * jnp.square(total)
        right = jnp.argmax(logits, axis=-1) == target
        # What does not count may be anything, and 0 · NaN is NaN.
        return jnp.where(weight == 0, 0.0, loss * weight).sum(), jnp.where(right, weight, 0.0).sum()

    flat = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1), weights.reshape(-1)
    return summed_by_blocks(block, flat, logits_nbytes // (4 * model.vocab))


def summed_by_blocks(fn: Any, args: tuple[Any, ...], most: int) -> Any:
    """The sum over blocks of at most `most` rows of `fn(*args)`, in order; on the way back each is computed again."""
    rows = args[0].shape[0]
    count = -(-rows // max(1, most))
    if count == 1:
        return fn(*args)
    size = -(-rows // count)
    padded = [jnp.pad(a, [(0, count * size - rows), *[(0, 0)] * (a.ndim - 1)]) for a in args]
    blocks = tuple(a.reshape(count, size, *a.shape[1:]) for a in padded)

    def add(so_far: Any, some: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, so_far, fn(*some)), None

    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(fn, *(b[0] for b in blocks)))
    return jax.lax.scan(jax.checkpoint(add), zero, blocks)[0]

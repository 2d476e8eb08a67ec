"""Choosing the next token. Pure functions of logits, inside jit; numbers are arrays, so that no value recompiles.

In the order that transformers' generate applies them: repetition penalty, temperature, top-k, top-p, min-p.
"""

from typing import Any

import jax
import jax.numpy as jnp

from plugins.engine.options import Sampling


def numbers(s: Sampling) -> dict[str, Any]:
    """The options that are numbers, as arrays: what is not compiled in."""
    return {
        "temperature": jnp.float32(s.temperature or 1.0),
        "top_k": jnp.int32(s.top_k),
        "top_p": jnp.float32(s.top_p),
        "min_p": jnp.float32(s.min_p),
        "penalty": jnp.float32(s.repetition_penalty),
    }


def penalize(logits: Any, seen: Any, penalty: Any) -> Any:
    """logits [B, V] of tokens that were `seen` [B, V], made smaller (CTRL, arXiv:1909.05858, section 4.1)."""
    return jnp.where(seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def keep_likely(logits: Any, top_k: Any, top_p: Any, min_p: Any) -> Any:
    """logits [B, V], -inf where a filter drops the token."""
    order = jnp.argsort(-logits, axis=-1)
    ranked = jnp.take_along_axis(logits, order, axis=-1)
    rank = jnp.arange(logits.shape[-1])
    ranked = jnp.where((top_k > 0) & (rank >= top_k), -jnp.inf, ranked)
    probs = jax.nn.softmax(ranked, axis=-1)
    # A token stays when those before it do not reach top_p yet; so the likeliest always stays. Rounded sums reach 1
    # before the last token: 1 has to be said apart.
    ranked = jnp.where((top_p >= 1) | (jnp.cumsum(probs, axis=-1) - probs < top_p), ranked, -jnp.inf)
    probs = jax.nn.softmax(ranked, axis=-1)
    ranked = jnp.where(probs >= min_p * probs[..., :1], ranked, -jnp.inf)
    return jnp.take_along_axis(ranked, jnp.argsort(order, axis=-1), axis=-1)


def choose(logits: Any, seen: Any, keys: Any, numbers: dict[str, Any], kind: tuple[bool, bool, bool]) -> Any:
    """The next tokens, [B] int32.

    Args:
        logits: [B, V] float32.
        seen: [B, V] bool, tokens of prompt and text; None when nothing is penalized.
        keys: [B] random keys.
        numbers: of `numbers`.
        kind: of `Sampling.kind`; static.
    """
    greedy, filters, penalizes = kind
    if penalizes:
        logits = penalize(logits, seen, numbers["penalty"])
    if greedy:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    logits = logits / numbers["temperature"]
    if filters:
        logits = keep_likely(logits, numbers["top_k"], numbers["top_p"], numbers["min_p"])
    return jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)

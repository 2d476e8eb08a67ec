"""Choosing the next token. Pure functions of logits, inside jit; numbers are arrays, so that no value recompiles.

In the order that transformers' generate applies them: repetition penalty, temperature, top-k, top-p, min-p. Tokens that
are as likely as the last of the top k stay too, as they do there.
"""

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plugins.engine.options import Sampling
from plugins.engine.sizes import power_of_two

NOTHING = -1
"""In the place of a token, where the logit that was chosen is NaN."""

CANDIDATES = (256, 2048)
"""Tokens that filters look at; only when they may keep more, they look at the next number, and in the end at all. No
vocabulary is sorted for it."""


def numbers(s: Sampling) -> dict[str, Any]:
    """The options that are numbers, as arrays: what is not compiled in."""
    found: dict[str, Any] = {
        "temperature": np.float32(s.temperature or 1.0),
        "top_k": np.int32(s.top_k),
        "top_p": np.float32(s.top_p),
        "min_p": np.float32(s.min_p),
        "penalty": np.float32(s.repetition_penalty),
    }
    return {name: jax.device_put(value) for name, value in found.items()}  # `jnp.float32` compiles a program


def ends(tokens: Collection[int]) -> Any:
    """After which a row ends, int32, in a size that programs are compiled for; `NOTHING` is one, and fills it up."""
    return jax.device_put(np.resize([NOTHING, *sorted(tokens)], power_of_two(1 + len(tokens), 8)).astype(np.int32))


def penalize(logits: Any, seen: Any, penalty: Any) -> Any:
    """logits [B, V] of tokens that were `seen` [B, V], made smaller (CTRL, arXiv:1909.05858, section 4.1)."""
    return jnp.where(seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def likeliest(logits: Any) -> Any:
    """The first of the largest of each row [B, V] float32, as [B] int32.

    In two reductions of integers that are in the same order (and 0 above -0): XLA's CPU backend makes vectors of these
    at once. A top-k takes it twice as long, `jnp.argmax` twenty times, and a maximum of floats it leaves to threads,
    which are another's in a step.
    """
    bits = jax.lax.bitcast_convert_type(logits, jnp.int32)
    rank = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    count = logits.shape[-1]
    behind = rank < jnp.max(rank, axis=-1, keepdims=True)
    return jnp.min(jnp.where(behind, count, jnp.arange(count, dtype=jnp.int32)), axis=-1)


def keep_likely(logits: Any, count: int, numbers: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Of the `count` likeliest tokens those that the filters keep.

    Returns:
        logits [B, count], descending, -inf where a filter drops the token; the tokens, [B, count] int32; and whether
        the filters keep no other token of the row, [B] bool.
    """
    top_k, top_p, min_p = (numbers[name] for name in ("top_k", "top_p", "min_p"))
    # Without the barrier what reads them is drawn into them, and XLA's CPU backend, which knows a top-k by its looks,
    # sorts the vocabulary. A barrier each: one for both takes, once a program for a mesh is simplified, the tuple that
    # the top-k gives, of which XLA's `TopkDecomposer` dies (jaxlib 0.10).
    more = min(count + 1, logits.shape[-1])  # one, to see whether it is as likely as the last of the top k
    further, tokens = map(jax.lax.optimization_barrier, jax.lax.top_k(logits, more))
    ranked, tokens = further[:, :count], tokens[:, :count]
    last_k = jnp.take(ranked, jnp.clip(top_k, 1, count) - 1, axis=-1)[:, None]
    in_k = (top_k == 0) | (top_k > count) | (ranked >= last_k)  # all that are as likely as the last of the k
    by_k = (top_k > 0) & (top_k <= count) & (further[:, -1] < last_k[:, 0])
    weight = jnp.where(in_k, jnp.exp(ranked - ranked[:, :1]), 0.0)
    every = jnp.sum(jnp.exp(logits - ranked[:, :1]), axis=-1, keepdims=True)
    whole = jnp.where(by_k[:, None] | (count == logits.shape[-1]), jnp.sum(weight, axis=-1, keepdims=True), every)
    before = jnp.cumsum(weight / whole, axis=-1) - weight / whole
    # A token stays when those before it do not reach top_p yet; so the likeliest always stays. Rounded sums reach 1
    # before the last token: 1 has to be said apart.
    kept = in_k & ((top_p >= 1) | (before < top_p)) & (weight >= min_p)
    past = (top_p < 1) & (before[:, -1] + (weight / whole)[:, -1] >= top_p) | (weight[:, -1] < min_p)
    past &= (top_k == 0) | (top_p >= 1)  # of the top k that are not all here, shares are not known
    return jnp.where(kept, ranked, -jnp.inf), tokens, by_k | past | (count == logits.shape[-1])


def draw_likely(logits: Any, noise: Any, numbers: dict[str, Any], counts: tuple[int, ...] = CANDIDATES) -> Any:
    """The tokens [B] of the largest sums of logit and noise, both [B, V], among those that the filters keep.

    Candidates are `counts[0]` likeliest ones; more, when the filters may keep more; in the end all.
    """
    vocab = logits.shape[-1]
    count, *more = *(n for n in counts if n < vocab), vocab
    ranked, tokens, enough = keep_likely(logits, count, numbers)

    def here() -> Any:
        best = likeliest(ranked + jnp.take_along_axis(noise, tokens, axis=-1))
        return jnp.take_along_axis(tokens, best[:, None], axis=-1)[:, 0]

    if not more:
        return here()
    return jax.lax.cond(jnp.all(enough), here, lambda: draw_likely(logits, noise, numbers, tuple(more)))


def choose(logits: Any, seen: Any, keys: Any, numbers: dict[str, Any], kind: tuple[bool, bool, bool]) -> Any:
    """The next tokens, [B] int32; `NOTHING` where logits are NaN.

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
        return _known(likeliest(logits), logits)
    logits = logits / numbers["temperature"]
    # The largest of logits with Gumbel noise is a draw from their softmax: what `jax.random.categorical` does.
    noise = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[-1:]))(keys)
    return _known(draw_likely(logits, noise, numbers) if filters else likeliest(logits + noise), logits)


def _known(tokens: Any, logits: Any) -> Any:
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return jnp.where(jnp.isnan(chosen), NOTHING, tokens)

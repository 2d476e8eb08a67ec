"""Texts that a model writes while it is trained, so that somebody sees what the loss means.

No cache is kept: a text is short, and all of it goes through the model for each of its tokens, in one program.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plugins.engine.sizes import power_of_two
from plugins.train.compiled import Compiled

Everywhere = Callable[[Callable[..., Any]], Callable[..., Any]]

SHORTEST = 16  # tokens that a program is compiled for


class Samples:
    """Continues prompts; a `plugins.train.loop.Sampler`."""

    def __init__(
        self, model: Callable[[Any, Any], Any], frozen: Mapping[str, Any], tokenizer: Any, prompts: Sequence[str],
        tokens: int, temperature: float, seed: int, everywhere: Everywhere = lambda fn: fn,
    ):  # fmt: skip
        """
        Args:
            model: (parameters, frozen) → a `plugins.models.common.decoder.Decoder`.
            tokens: of a continuation.
            temperature: 0: always the likeliest token.
            everywhere: has a function of these two, and of what is the same on all devices, run on a mesh; every device
                goes through all texts, as these are few.
        """
        self._frozen, self._tokenizer = dict(frozen), tokenizer
        self._prompts = {prompt: tokenizer.encode(prompt, special=True) for prompt in prompts}
        longest = max(map(len, self._prompts.values()), default=0)
        self._length, self._tokens = power_of_two(longest + tokens, SHORTEST), tokens

        def next_tokens(parameters: Any, frozen: Any, ids: Any, ends: Any, step: Any, i: Any) -> Any:
            at = jnp.arange(ids.shape[1], dtype=jnp.int32)[None]
            decoder = model(parameters, frozen)
            hidden, _ = decoder(ids, jnp.where(at < ends[:, None], at, -1))
            logits = decoder.logits(jnp.take_along_axis(hidden, ends[:, None, None] - 1, axis=1)[:, 0])
            if not temperature:
                return jnp.argmax(logits, axis=-1)
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), i)
            return jax.random.categorical(key, logits / temperature)

        self._next = Compiled(everywhere(next_tokens))

    def __call__(self, parameters: Mapping[str, Any], step: int) -> dict[str, str]:
        """Prompt → how it goes on, by the parameters after `step` updates."""
        rows = list(self._prompts.values())
        ids = np.zeros((len(rows), self._length), np.int32)
        for row, prompt in zip(ids, rows, strict=True):
            row[: len(prompt)] = prompt
        ends = np.array([len(prompt) for prompt in rows], np.int32)
        for i in range(self._tokens):
            found = self._next(parameters, self._frozen, ids, ends, np.int32(step), np.int32(i))
            ids[np.arange(len(rows)), ends] = np.asarray(found)
            ends += 1
        made = (row[len(prompt) : len(prompt) + self._tokens].tolist() for row, prompt in zip(ids, rows, strict=True))
        return dict(zip(self._prompts, map(self._tokenizer.decode, made), strict=True))

"""Texts on the way: what the model would write, token by token."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plugins.train.samples import Samples
from tests.cases import trained

KIND = "llama"


class Letters:
    """A token for each letter."""

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return [ord(c) % trained.VOCAB for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(32 + i) for i in ids)


def samples(**changed: Any) -> Samples:
    step = trained.step_of(KIND)
    how = {"prompts": ("ab", "a longer one"), "tokens": 2, "temperature": 0.0, "seed": 0, **changed}
    return Samples(lambda p, frozen: step.bound.model(p), {}, Letters(), **how)


def test_prompts_of_any_length_go_on_as_they_would_alone() -> None:
    parameters = {n: jnp.asarray(a) for n, a in trained.parameters(KIND).items()}
    together = samples()(parameters, 0)
    assert {p: len(t) for p, t in together.items()} == {"ab": 2, "a longer one": 2}
    decoder = trained.step_of(KIND).bound.model(parameters)
    for prompt, text in together.items():
        ids = Letters().encode(prompt)
        for _ in range(2):  # by the model itself, all of the text at once
            positions = jnp.arange(len(ids), dtype=jnp.int32)[None]
            logits = jax.jit(lambda t, p: decoder.logits(decoder(t, p)[0][:, -1]))(jnp.asarray([ids]), positions)
            ids.append(int(np.argmax(logits)))
        assert text == Letters().decode(ids[-2:])


def test_chance_is_a_function_of_seed_and_update() -> None:
    parameters = {n: jnp.asarray(a) for n, a in trained.parameters(KIND).items()}
    warm = samples(temperature=2.0, prompts=("ab",), tokens=12)
    first = warm(parameters, 1)
    assert first == warm(parameters, 1)
    assert first != warm(parameters, 2)

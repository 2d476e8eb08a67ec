"""What is generated, and what is drawn from, by transformers."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from plugins.engine import sampling as samplers
from plugins.engine.generate import generate
from plugins.engine.options import Sampling
from tests.cases import model_runs
from tests.cases.toy_models import VOCAB, read, taps, toy
from tests.unit.engine.test_generate import assert_likeliest

pytestmark = pytest.mark.oracle


@pytest.mark.filterwarnings("default")
def test_greedy_is_what_transformers_finds_likeliest() -> None:
    """Prompts of unequal length in one batch, by a model with rings and full layers."""
    t = toy("gemma3")
    runtime = model_runs.load(t.folder)
    prompts = [t.ids[0, :21].tolist(), t.ids[1, :3].tolist(), t.ids[2, :40].tolist()]
    with model_runs.quick_compilation():
        done, _ = generate(runtime, prompts, Sampling(max_tokens=20))
    theirs = read(t.folder, "gemma3")
    for prompt, c in zip(prompts, done, strict=True):
        logits = taps(theirs, np.array([[*prompt, *c.tokens]]))["logits"][0]
        assert_likeliest(logits[len(prompt) - 1 : -1], c.tokens)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7},
        {"temperature": 1.3, "top_k": 5},
        {"temperature": 1.0, "top_k": 5000},
        {"temperature": 0.8, "top_p": 0.6},
        {"temperature": 1.5, "min_p": 0.2},
        {"temperature": 0.5, "top_k": 3, "ties": True},
        {"temperature": 0.9, "top_k": 1, "ties": True},
        {"temperature": 0.9, "top_k": 7, "min_p": 0.3, "ties": True},
        {"temperature": 1.0, "repetition_penalty": 1.7},
        {"temperature": 0.6, "top_k": 30, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 0.7},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("default")
def test_filters_are_those_of_transformers(options: dict[str, Any]) -> None:
    import torch
    from transformers import generation as g

    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (5, VOCAB)).astype(np.float32)
    if options.get("ties"):  # as those of bf16 often are
        logits = np.round(logits)
    prompt = rng.integers(0, VOCAB, (5, 17))
    s = Sampling(**{name: value for name, value in options.items() if name != "ties"})
    steps = [g.RepetitionPenaltyLogitsProcessor(s.repetition_penalty), g.TemperatureLogitsWarper(s.temperature)]
    steps += [g.TopKLogitsWarper(min(s.top_k, VOCAB))] if s.top_k else []
    steps += [g.TopPLogitsWarper(s.top_p)] if s.top_p < 1 else []
    steps += [g.MinPLogitsWarper(s.min_p)] if s.min_p else []
    want = g.LogitsProcessorList(steps)(torch.tensor(prompt), torch.tensor(logits)).numpy()

    seen = np.zeros((5, VOCAB), bool)
    np.put_along_axis(seen, prompt, True, -1)
    numbers = samplers.numbers(s)
    got = samplers.penalize(jnp.asarray(logits), seen, numbers["penalty"]) / numbers["temperature"]
    if s.filters:
        ranked, order, enough = samplers.keep_likely(got, VOCAB, numbers)
        assert enough.all()
        got = np.array(got)
        np.put_along_axis(got, np.asarray(order), np.asarray(ranked), -1)
    assert (np.isinf(got) == np.isinf(want)).all()
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert np.isinf(want).any() == (s.filters and s.top_k < VOCAB)

"""Several documents in a row: each gives what it gives alone, logits and gradients, whatever its layers look at."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plugins.train.objectives import CausalLM
from plugins.train.step import Bound
from tests.cases import model_runs, trained

KINDS = ("gpt_oss", "llama", "mistral", "qwen3_moe", "gemma")
LENGTHS = (9, 1, 8)  # longer than a window; one token; and padding after the last
ROW = 20


def row(lengths: Any, at: int = 0) -> dict[str, Any]:
    """Documents in one row, with tokens from number `at` of all on."""
    tokens = np.random.default_rng(3).integers(0, trained.VOCAB, sum(LENGTHS)).astype(np.int32)
    found = {name: np.zeros((1, ROW), np.int32) for name in ("tokens", "targets", "segments")}
    found |= {"positions": np.full((1, ROW), -1, np.int32), "weights": np.zeros((1, ROW), np.float32)}
    begin = 0
    for document, n in enumerate(lengths, 1):
        here = (0, slice(begin, begin + n))
        ids = tokens[at + begin : at + begin + n]
        found["tokens"][here], found["segments"][here], found["positions"][here] = ids, document, np.arange(n)
        found["targets"][here], found["weights"][here] = np.roll(ids, -1), np.arange(n) < n - 1
        begin += n
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.brief("gpt_oss", "llama")
def test_documents_of_a_row_give_what_each_gives_alone(kind: str) -> None:
    bound, objective, parameters = Bound(trained.model(kind)), CausalLM(), trained.parameters(kind)

    @jax.jit
    def run(parameters: Any, batch: Any) -> Any:
        def loss(p: Any) -> Any:
            model = bound.model(p)
            logits = model.logits(model(batch["tokens"], batch["positions"], segments=batch["segments"])[0])
            return objective.sums(model, batch, None)[0], logits

        return jax.value_and_grad(loss, has_aux=True)(parameters)

    (loss, logits), gradients = run(parameters, row(LENGTHS))
    at, alone = 0, []
    for n in LENGTHS:
        alone.append(run(parameters, row([n], at)))
        np.testing.assert_allclose(logits[0, at : at + n], alone[-1][0][1][0, :n], rtol=1e-4, atol=1e-4)
        at += n
    one = {**row(LENGTHS), "segments": np.ones((1, ROW), np.int32)}
    (merged, _), _ = run(parameters, one)
    assert abs(loss - sum(a[0][0] for a in alone)) < 1e-4 * abs(loss) < abs(loss - merged)
    total = jax.tree.map(lambda *g: sum(g), *(g for _, g in alone))
    for name, gradient in gradients.items():
        size = np.abs(total[name]).max()
        assert size > 0, name
        np.testing.assert_allclose(gradient, total[name], rtol=0, atol=1e-5 * size, err_msg=name)


def test_a_cache_holds_one_document_a_row() -> None:
    bound = Bound(trained.model("llama"))
    ids = jnp.zeros((1, 4), jnp.int32)
    cache = model_runs  # anything that is no None is asked about first
    with pytest.raises(ValueError, match="a cache, which holds one"):
        bound.model(trained.parameters("llama"))(ids, ids, cache, segments=ids)  # type: ignore[arg-type]

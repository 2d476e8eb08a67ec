"""The first 50 updates beside transformers and torch in float32: the same weights, batches and numbers of AdamW."""

from typing import Any

import numpy as np
import pytest

from plugins.train.objectives import CausalLM
from plugins.train.optimizers import AdamW
from plugins.train.schedules import Schedule
from plugins.train.step import make_step
from tests.cases import model_runs, toy_models, trained

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]

STEPS, ROWS, LENGTH, RATE, DECAY = 50, 4, 24, 1e-3, 0.1
SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "num_hidden_layers": 2, "layer_types": None,
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "gpt-oss": {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2},
    "smollm2": {**SMALL},
    "qwen3-moe": {**SMALL, "num_experts": 4, "num_experts_per_tok": 2, "mlp_only_layers": []},
    "gemma3": {**SMALL},
}


def ids() -> Any:
    """Tokens at random, the same few batches again and again."""
    few = np.random.default_rng(5).integers(3, toy_models.VOCAB, (5, ROWS, LENGTH)).astype(np.int32)
    return np.tile(few, (STEPS // 5, 1, 1))


def ours(folder: Any) -> list[float]:
    runtime = model_runs.load(folder, weights_dtype="f32")
    model = runtime._model(runtime._leaves)
    optimizer = AdamW(rate=RATE, b2=0.99, decay=DECAY, undecayed=(), clip=1.0, schedule=Schedule("linear", warmup=5))
    step = make_step(model, CausalLM(logits_nbytes=1 << 14), optimizer, steps=STEPS)
    state = step.init({name: p.get_value() for name, p in step.bound.params.items()})
    at = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (1, ROWS, LENGTH))
    weights = np.broadcast_to(np.arange(LENGTH) < LENGTH - 1, at.shape).astype(np.float32)
    losses = []
    for tokens in ids():
        batch = {"tokens": tokens[None], "targets": np.roll(tokens, -1, axis=-1)[None], "weights": weights}
        batch |= {"positions": at, "segments": np.ones_like(at)}
        state, seen = step(state, batch, trained.key())
        losses.append(float(seen["loss"]))
    return losses


def theirs(model: Any) -> list[float]:
    import torch

    torch.set_num_threads(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.99), eps=1e-8, weight_decay=DECAY)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 5, 1, (STEPS - s) / (STEPS - 5)))
    losses = []
    for tokens in ids():
        given = torch.tensor(tokens, dtype=torch.int64)
        loss = model(given, labels=given, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.brief("smollm2")
def test_the_first_fifty_losses(name: str, tmp_path: Any) -> None:
    """With optimized programs where a model has experts, and where it has none."""
    model = toy_models.make(tmp_path, name, **OPTIONS[name])
    with model_runs.quick_compilation(name not in ("gpt-oss", "smollm2")):
        found = ours(tmp_path)
    wanted = theirs(model.train())
    assert wanted[-1] < wanted[0] - 0.1
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-3)

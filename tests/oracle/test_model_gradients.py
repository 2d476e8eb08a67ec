"""Gradients of whole models with respect to every parameter, against transformers and torch in float32."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plugins.engine.load import parameters
from tests.cases import model_runs, toy_models
from tests.cases.toy_models import toy

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]


def ours(folder: Any, ids: Any) -> tuple[float, dict[str, Any]]:
    """The mean negative log-likelihood of the next tokens, and its gradient by Hugging Face name."""
    runtime = model_runs.load(folder, weights_dtype="f32")
    at = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)

    def loss(leaves: Any) -> Any:
        model = runtime._model(leaves)
        logits = model.logits(model(jnp.asarray(ids), jnp.asarray(at))[0])[:, :-1]
        scores = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(scores, jnp.asarray(ids)[:, 1:, None], axis=-1).mean()

    with model_runs.quick_compilation():
        value, leaves = jax.jit(jax.value_and_grad(loss))(runtime._leaves)
    found = {}
    for param in parameters(runtime._model(leaves)):
        whole = np.asarray(param.get_value())
        found |= dict(zip(param.names, whole if param.stack else [whole], strict=True))
    return float(value), found


def theirs(folder: Any, name: str, ids: Any) -> tuple[float, dict[str, Any]]:
    import torch

    model = toy_models.read(folder, name)
    tokens = torch.tensor(ids, dtype=torch.int64)
    logits = model(tokens, use_cache=False).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))
    loss.backward()
    found = {n: p.grad.numpy() for n, p in model.named_parameters()}
    if name == "gpt-oss":  # [E, in, out] there
        swapped = {n for n in found if n.endswith(("gate_up_proj", "down_proj"))}
        found = {n: g.swapaxes(1, 2) if n in swapped else g for n, g in found.items()}
    for n in [n for n in found if n.endswith("mlp.experts.gate_up_proj")] if name == "qwen3-moe" else ():
        gate_up, down = found.pop(n), found.pop(n.replace("gate_up", "down"))
        for e in range(len(gate_up)):
            one = n.replace("gate_up_proj", f"{e}.")
            gate, up = np.split(gate_up[e], 2)
            found |= {f"{one}gate_proj.weight": gate, f"{one}up_proj.weight": up, f"{one}down_proj.weight": down[e]}
    return float(loss.detach()), found


@pytest.mark.parametrize("name", ["gpt-oss", "qwen3-moe", "gemma3-capped", "llama-linear-biases", "smollm2"])
@pytest.mark.brief("gpt-oss")
def test_gradients_of_every_parameter(name: str) -> None:
    t = toy(name)
    ids = t.ids[:2, :29]
    loss, grads = ours(t.folder, ids)
    want_loss, want = theirs(t.folder, name, ids)
    assert abs(loss - want_loss) < 1e-5
    assert set(grads) == set(want)
    for n, g in want.items():
        size = np.abs(g).max()
        assert size > 0, n
        assert np.abs(grads[n] - g).max() <= 1e-4 * size, n

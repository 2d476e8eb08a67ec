"""Ops of models, by torch and transformers."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from pipeline.ops import Kernel
from plugins.kernels.cases import normal
from plugins.kernels.rope.frequencies import frequencies
from plugins.models.gemma.numbers import Numbers as Gemma
from plugins.models.llama.numbers import Numbers as Llama
from tests.unit.kernels.test_attention import BATCH, HEADS, KEY_HEADS, QUERIES, D, prompt
from tests.unit.kernels.test_rope_frequencies import BASE, CASES, spellings

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("causal", [True, False])
def test_attention_of_torch(causal: bool) -> None:
    import torch

    q, k, v, _, _ = prompt()
    at = np.tile(np.arange(QUERIES, dtype=np.int32), (BATCH, 1))
    heads_first = (torch.from_numpy(a).transpose(1, 2) for a in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=causal, enable_gqa=True)
    found = Kernel("attention", ("xla",))(q, k, v, at, at, scale=D**-0.5, causal=causal)
    np.testing.assert_allclose(found, expected.transpose(1, 2).numpy(), rtol=1e-5, atol=1e-6)


def test_attention_of_gpt_oss_with_sinks_and_window() -> None:
    import torch
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    q, k, v, _, _ = prompt()
    v = np.resize(v, k.shape)
    at = np.tile(np.arange(QUERIES, dtype=np.int32), (BATCH, 1))
    sinks = normal(np.random.default_rng(1), HEADS)
    module = torch.nn.Module()
    module.num_key_value_groups, module.sinks, module.training = HEADS // KEY_HEADS, torch.from_numpy(sinks), False
    row, column = np.ogrid[:QUERIES, :QUERIES]
    mask = np.where((column <= row) & (column > row - 6), 0, -np.inf).astype(np.float32)[None, None]
    heads_first = (torch.from_numpy(a).transpose(1, 2) for a in (q, k, v))
    expected, _ = eager_attention_forward(module, *heads_first, torch.from_numpy(mask), scaling=0.3, dropout=0.0)
    found = Kernel("attention", ("xla",))(q, k, v, at, at, scale=0.3, window=6, sinks=sinks)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("head_dim", [24, 128])
def test_rope_frequencies_in_every_spelling(name: str, head_dim: int) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    theta, rope = CASES[name]
    config = LlamaConfig(**(BASE | {"head_dim": head_dim, "rope_parameters": dict(rope) | {"rope_theta": theta}}))
    compute = ROPE_INIT_FUNCTIONS.get(rope["rope_type"], LlamaRotaryEmbedding.compute_default_rope_parameters)
    expected, concentration = compute(config)
    for spelling, given in spellings(theta, rope).items():
        layer = "full_attention" if spelling == "by layer type" else None
        inv_freq, found = frequencies(given, head_dim, layer)
        assert inv_freq.dtype == np.float32
        assert inv_freq.shape == (head_dim // 2,)
        np.testing.assert_array_max_ulp(inv_freq, expected.numpy(), maxulp=1)
        assert found == pytest.approx(concentration, rel=1e-12), spelling


LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
BY_KIND = {"sliding_attention": {"rope_type": "default"}, "full_attention": {**LINEAR, "factor": 8.0}}
CONTEXT = {"original_max_position_embeddings": 300}
TWICE = {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}, "rope_scaling": LINEAR}


@pytest.mark.parametrize(
    ("family", "given"),
    [
        ("llama", TWICE),
        ("llama", TWICE | {"rope_theta": 900.0}),
        ("llama", {"rope_theta": 900.0, "rope_scaling": YARN} | CONTEXT),
        ("llama", {"rope_theta": 900.0, "rope_scaling": {"type": "yarn", "factor": 4.0}}),
        ("gemma3_text", {"rope_theta": 900.0, "rope_local_base_freq": 30.0, "rope_scaling": YARN} | CONTEXT),
        ("gemma3_text", {"rope_theta": 900.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}} | CONTEXT),
        ("gemma3_text", {"rope_parameters": BY_KIND, "rope_theta": 900.0}),
        ("gemma3_text", {"rope_parameters": BY_KIND, "rope_theta": 900.0, "rope_local_base_freq": 30.0}),
        ("gemma3_text", {"rope_parameters": BY_KIND, "rope_scaling": LINEAR}),
        ("gemma3_text", {"rope_parameters": {"full_attention": YARN}, "rope_local_base_freq": 30.0}),
    ],
)
def test_ropes_that_are_said_in_several_places(family: str, given: dict[str, Any]) -> None:
    import transformers
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    sizes = {"num_hidden_layers": 6, "intermediate_size": 64, "vocab_size": 99, "num_key_value_heads": 5}
    config = BASE | sizes | given
    theirs = transformers.AutoConfig.for_model(family, **deepcopy(config))
    if family == "llama":
        made = LlamaRotaryEmbedding(theirs)
        wanted = [(made.inv_freq, made.attention_scaling)] * 6
    else:
        made = Gemma3RotaryEmbedding(theirs)
        names = [[f"{kind}_{what}" for what in ("inv_freq", "attention_scaling")] for kind in theirs.layer_types]
        wanted = [(getattr(made, freq), getattr(made, scaling)) for freq, scaling in names]
    ours = (Llama if family == "llama" else Gemma).read({"model_type": family, **config})
    for layer, (inv_freq, scaling) in zip(ours.attention, wanted, strict=True):
        np.testing.assert_array_max_ulp(np.float32(layer.rope.inv_freq), inv_freq.numpy(), maxulp=1)
        assert layer.rope.concentration == pytest.approx(scaling, rel=1e-12)

"""Ops of models, by torch and transformers."""

import numpy as np
import pytest

from pipeline.ops import Kernel
from plugins.kernels.cases import normal
from plugins.kernels.rope.frequencies import frequencies
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

"""GGUF by transformers: what it makes of the same file."""

import gguf
import numpy as np
import pytest

from pipeline.ops import Kernel
from pipeline.stage import Context
from plugins.formats.gguf.config import llama3_factors
from plugins.formats.safetensors.container import SafeTensors
from plugins.formats.safetensors.plain import Plain
from stages.export import Export
from tests.unit.formats.gguf.test_families import GEMMA, in_file, loaded, weights, written

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_factors_are_those_of_transformers(factor):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 8192, "rope_theta": 500000.0}
    config = LlamaConfig(head_dim=64, max_position_embeddings=131072, rope_parameters=rope)
    theirs, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 500000.0 ** -(np.arange(0, 64, 2) / 64)
    assert np.allclose(plain / llama3_factors(rope, 64), theirs.numpy(), rtol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_gemma_is_the_model_that_transformers_reads(tmp_path):
    """transformers' own GGUF loading against our export to Hugging Face: config, weights and logits, bit for bit."""
    import torch
    from transformers import AutoModelForCausalLM

    leaves = in_file("gemma3", weights(GEMMA))
    types = {n: gguf.GGMLQuantizationType.Q5_0 for n in leaves if "ffn_up" in n}
    types |= {n: gguf.GGMLQuantizationType.Q8_0 for n in leaves if "attn_v" in n}
    path = written(tmp_path / "model.gguf", "gemma3", leaves, types)
    stage = Export(
        Plain(),
        SafeTensors(),
        Kernel("dequantize", ("numpy",)),
        Kernel("cast", ("numpy",)),
        str(tmp_path / "out"),
        dtype="fp32",
    )
    work = stage.run(Context(tmp_path), loaded(path))
    work.begin(fresh=True)
    work.finish([{"digest": work.do(c)} for c in work.chunks])
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    told, found = ours.config.to_dict(), theirs.config.to_dict()
    # transformers reads no rope scaling from a GGUF file of Gemma 3, and its default for the scale of the queries.
    assert told["rope_parameters"]["full_attention"]["factor"] == 8.0
    assert told["query_pre_attn_scalar"] == 20
    for key in ("layer_types", "sliding_window", "head_dim", "num_key_value_heads", "hidden_activation", "vocab_size"):
        assert told[key] == found[key], key
    assert told["rope_parameters"]["sliding_attention"] == found["rope_parameters"]["sliding_attention"]
    state, wanted = ours.state_dict(), theirs.state_dict()
    assert state.keys() == wanted.keys()
    for name, value in state.items():
        assert torch.equal(value, wanted[name]), name

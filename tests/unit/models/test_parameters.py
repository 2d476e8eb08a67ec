"""A model's parameters by config.json alone are those that its constructor declares, and may be divided as they may."""

import math
import re
import subprocess
import sys
from typing import Any

import pytest

from pipeline.api import compose_run
from pipeline.config.options import CONF, options
from pipeline.errors import PlanError, SourceError
from pipeline.hooks import optional
from pipeline.mesh import COMPUTED, ONLY_STORED, Parameter
from pipeline.strictjson import read_object
from pipeline.tensors.scheme import MXFP4
from pipeline.tensors.spec import TensorSpec
from plugins.engine.load import parameters as declared
from plugins.facts.heads import usual_head_dim
from plugins.models.common import settings
from plugins.models.common.layers import ACTIVATIONS
from plugins.models.common.weights import Weights
from plugins.models.family import family_of
from plugins.models.gpt_oss import numbers as gpt_oss
from plugins.models.llama import numbers as llama
from plugins.models.qwen.numbers import Numbers
from stages.outline import FamilyHooks, outlined, published
from tests.cases import model_runs

# Every dimension is another number.
HIDDEN, INTER, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB, EXPERTS, MOE_INTER = 40, 56, 6, 3, 10, 4, 37, 5, 24
SIZES = {
    "hidden_size": HIDDEN, "intermediate_size": INTER, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM, "num_hidden_layers": LAYERS, "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
}  # fmt: skip
MOE = {"model_type": "qwen3_moe", "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": MOE_INTER}
GPT_OSS = {"model_type": "gpt_oss", "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "sliding_window": 7}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama, tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama, biases of attention": {"model_type": "llama", "attention_bias": True},
    "llama, biases of the MLP": {"model_type": "llama", "mlp_bias": True},
    "llama, head_dim and key heads left out": {
        "model_type": "llama", "head_dim": None, "num_key_value_heads": None, "hidden_size": 48
    },
    "mistral": {"model_type": "mistral", "sliding_window": 7},
    "qwen2": {"model_type": "qwen2", "head_dim": None, "hidden_size": 48, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": None},
    "qwen3, biases": {"model_type": "qwen3", "attention_bias": True},
    "qwen3_moe": MOE,
    "qwen3_moe, dense layers between": {**MOE, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "gemma3": {"model_type": "gemma3_text", "sliding_window": 7},
    "gemma3, untied with biases": {"model_type": "gemma3_text", "tie_word_embeddings": False, "attention_bias": True},
    "gpt_oss": GPT_OSS,
    "gpt_oss without biases": {**GPT_OSS, "attention_bias": False},
    "mlp": {"model_type": "mlp", "inputs": [3, 5], "hidden_sizes": [7, 11], "outputs": 2},
    "cnn": {"model_type": "cnn", "inputs": [9, 8, 3], "hidden_sizes": [7, 11, 11], "strides": [2, 1, 1], "outputs": 5},
}  # fmt: skip
PUBLISHED = [n for n in options("model") if (CONF / "model" / f"{n}.yaml").read_text().find("source: hf://") >= 0]


def config(name: str) -> dict[str, Any]:
    return {k: v for k, v in {**SIZES, **CONFIGS[name]}.items() if v is not None}


def parameters(config: dict[str, Any]) -> tuple[Parameter, ...]:
    return family_of(config, model_runs.engine().families).parameters(config)


def build(config: dict[str, Any]) -> Any:
    engine = model_runs.engine()
    unnamed = {f"x{i}": TensorSpec((1,), "BF16") for i in range(999)}  # there may not be more layers than tensors
    return family_of(config, engine.families).build(config, Weights(unnamed), engine.ops, "float32")


@pytest.mark.parametrize("name", CONFIGS)
def test_they_are_what_the_constructor_declares(name: str) -> None:
    found = {p.names: (p.shape, p.axes, p.stack) for p in parameters(config(name))}
    assert found == {p.names: (p.spec.shape, p.axes, p.stack) for p in declared(build(config(name)))}
    axes = {axis for _, axes, _ in found.values() for axis in axes}
    assert axes <= {*COMPUTED, *ONLY_STORED}


def test_what_a_config_leaves_out_is_as_transformers_has_it() -> None:
    """`GptOssConfig` and `MistralConfig`; the latter's null is no window."""
    silent = {k: v for k, v in config("gpt_oss").items() if k not in ("rms_norm_eps", "head_dim", "sliding_window")}
    read = gpt_oss.Numbers.read(silent)
    assert (read.eps, read.attention[0].head_dim, read.attention[0].window) == (1e-5, 64, 128)
    for name, dims in {"gpt_oss": 64, "qwen2": 9, "qwen3": 128, "qwen3_moe": 9, "gemma3_text": 256, "llama": 9}.items():
        assert usual_head_dim(name, 72, 8) == dims
    silent = {k: v for k, v in config("mistral").items() if k not in ("rms_norm_eps", "sliding_window")}
    assert (llama.Numbers.read(silent).eps, llama.Numbers.read(silent).attention[0].window) == (1e-6, 4096)
    assert llama.Numbers.read({**silent, "sliding_window": None}).attention[0].window is None
    kinds = ["sliding_attention", *["full_attention"] * (LAYERS - 1)]
    read = llama.Numbers.read({**silent, "model_type": "ministral", "layer_types": kinds})
    assert [layer.window for layer in read.attention][:2] == [4096, None]


def test_the_configs_have_every_conditional() -> None:
    """Each of these differs from its neighbour in tensors."""
    kinds = {n: {re.sub(r"\d+", "*", name) for p in parameters(config(n)) for name in p.names} for n in CONFIGS}
    without = kinds["llama"]
    assert without - kinds["llama, tied"] == {"lm_head.weight"}
    heads = {f"model.layers.*.self_attn.{p}_proj.bias" for p in "qkvo"}
    assert kinds["llama, biases of attention"] - without == heads
    assert kinds["gpt_oss"] - kinds["gpt_oss without biases"] == heads
    assert kinds["llama, biases of the MLP"] - without == {
        f"model.layers.*.mlp.{p}_proj.bias" for p in ("gate", "up", "down")
    }
    norms = {"model.layers.*.self_attn.q_norm.weight", "model.layers.*.self_attn.k_norm.weight"}
    assert kinds["qwen3"] - without == norms
    assert "model.layers.*.self_attn.sinks" in kinds["gpt_oss"]
    sparse = {p.name.split(".")[2] for p in parameters(config("qwen3_moe, dense layers between")) if p.stack}
    assert sparse == {"1"}, "the other layers have no experts"


UNITS: dict[str, dict[str, tuple[int, ...]]] = {
    "llama, biases of attention": {
        "self_attn.q_proj.weight": (HEAD_DIM, 1), "self_attn.k_proj.weight": (HEAD_DIM, 1),
        "self_attn.v_proj.weight": (HEAD_DIM, 1), "self_attn.o_proj.weight": (1, HEAD_DIM),
        "self_attn.q_proj.bias": (HEAD_DIM,), "self_attn.k_proj.bias": (HEAD_DIM,),
        "self_attn.v_proj.bias": (HEAD_DIM,), "self_attn.o_proj.bias": (1,),
        "mlp.gate_proj.weight": (1, 1), "mlp.up_proj.weight": (1, 1), "mlp.down_proj.weight": (1, 1),
        "input_layernorm.weight": (1,),
    },
    "qwen2": {"self_attn.q_proj.weight": (8, 1), "self_attn.o_proj.weight": (1, 8)},
    "qwen3": {"self_attn.q_proj.weight": (128, 1), "self_attn.q_norm.weight": (1,)},
    "qwen3_moe": {
        "mlp.gate.weight": (1, 1), "mlp.experts.0.gate_proj.weight": (1, 1, 1),
        "mlp.experts.0.down_proj.weight": (1, 1, 1),
    },
    "gemma3": {"self_attn.k_proj.weight": (HEAD_DIM, 1), "post_feedforward_layernorm.weight": (1,)},
    "gpt_oss": {
        "self_attn.q_proj.weight": (HEAD_DIM, 1), "self_attn.sinks": (1,), "mlp.router.weight": (1, 1),
        "mlp.experts.gate_up_proj": (1, 2, 1), "mlp.experts.gate_up_proj_bias": (1, 2),
        "mlp.experts.down_proj": (1, 1, 1), "mlp.experts.down_proj_bias": (1, 1),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", UNITS)
def test_what_is_never_cut_apart(name: str) -> None:
    """Heads that lie flattened, and interleaved pairs of gate and up."""
    found = {p.name: p for p in parameters(config(name))}
    units = {where: found[f"model.layers.1.{where}"].units for where in UNITS[name]}
    assert units == UNITS[name]
    assert found["model.embed_tokens.weight"].units == (1, 1)
    for p in found.values():
        assert all(n % unit == 0 for n, unit in zip(p.shape, p.units, strict=True)), p


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "several at once": ("llama", {"hidden_size": -1, "vocab_size": "many", "tie_word_embeddings": 3}),
    "missing": ("llama", {"intermediate_size": None}),
    "heads": ("llama", {"num_key_value_heads": 4}),
    "an activation": ("gemma3", {"hidden_activation": "tanh"}),
    "layer types": ("qwen3", {"layer_types": ["full_attention"]}),
    "more experts chosen than there are": ("qwen3_moe", {"num_experts_per_tok": 6}),
    "an unknown rope": ("llama", {"rope_scaling": {"rope_type": "unheard of"}}),
    "bidirectional": ("gemma3", {"use_bidirectional_attention": True}),
    "a cap that Gemma 2 has": ("gemma3", {"attn_logit_softcapping": 50.0}),
    "heads that are rotated in part": ("llama", {"rope_parameters": {"rope_theta": 7e2, "partial_rotary_factor": 0.5}}),
    "tied gpt-oss": ("gpt_oss", {"tie_word_embeddings": True}),
    "no window": ("gpt_oss", {"sliding_window": 0}),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_configs_are_the_errors_that_building_gives(case: str) -> None:
    name, change = BAD[case]
    bad = {k: v for k, v in {**config(name), **change}.items() if v is not None}
    with pytest.raises((PlanError, SourceError)) as plainly:
        parameters(bad)
    with pytest.raises((PlanError, SourceError)) as building:
        build(bad)
    assert str(plainly.value) == str(building.value)
    assert type(plainly.value) is type(building.value)


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_experts"])
def test_more_than_any_model_has_is_refused_before_a_table_is_made(key: str) -> None:
    with pytest.raises(PlanError, match=f"{key}: .*without weights that say otherwise, 100,000 are taken for a mist"):
        parameters({**config("qwen3_moe"), key: 10**9})
    with pytest.raises(PlanError, match=r"num_experts: 50000 in each of 4 layers are too many"):
        parameters({**config("qwen3_moe"), "num_experts": 50_000})


def test_a_window_of_qwen3_moe_is_of_all_layers() -> None:
    """transformers 5.23, models/qwen3_moe: its config knows no kinds of layers."""
    windowed = {**config("qwen3_moe"), "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3}
    windowed["layer_types"] = ["full_attention"] * windowed["num_hidden_layers"]
    assert {a.window for a in Numbers.read(windowed).attention} == {5}


def test_activations_are_those_there_are_functions_for() -> None:
    assert tuple(ACTIVATIONS) == settings.ACTIVATION_NAMES


def test_no_framework_is_imported() -> None:
    code = (
        "import sys; from plugins.models.qwen.family import Qwen; from plugins.models.gpt_oss.family import GptOss\n"
        f"Qwen().parameters({config('qwen3_moe')!r}); GptOss().parameters({config('gpt_oss')!r})\n"
        "sys.exit(any(name in sys.modules for name in ('jax', 'flax')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Checkpoints that are known by name


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_shapes_of_published_checkpoints(name: str) -> None:
    """As many parameters as the option says that are published."""
    families = model_runs.engine().families
    address = compose_run([f"+model={name}", "stages=[load]"]).tree["model"]["source"]
    file = published(families, address)
    assert file is not None, address
    stated = re.search(r"([\d,]{9,}) parameters", (CONF / "model" / f"{name}.yaml").read_text())
    assert stated is not None
    found = read_object(file)
    assert sum(math.prod(p.shape) for p in parameters(found)) == int(stated[1].replace(",", ""))
    assert published(families, f"{address}@main") is published(families, f"{address}/original") is None


def test_published_files_are_all_named_by_an_option() -> None:
    folders = {optional(family, FamilyHooks, "published") for family in model_runs.engine().families} - {None}
    files = {f for folder in folders for f in folder.rglob("*.json")}
    assert len(files) == len(PUBLISHED) > 14


def test_the_bytes_of_gpt_oss_20b() -> None:
    """total_size of its model.safetensors.index.json, and the experts of each layer packed."""
    engine, load = model_runs.engine(), compose_run(["+model=gpt_oss_20b", "stages=[load]"]).stages["load"]
    file = published(engine.families, "hf://openai/gpt-oss-20b")
    assert file is not None
    outline, _ = outlined(file, read_object(file), engine.families, load.dialects)
    assert sum(spec.nbytes for spec in outline.specs.values()) == 13_761_264_768
    assert sum(spec.scheme == MXFP4 for spec in outline.specs.values()) == 2 * 24

"""Gemma 3 and the Qwens in GGUF: files that gguf-py wrote as llama.cpp's conversion would, and what we make of them.

Names come from the gguf package's own map of Hugging Face names; norms plus one and stacked experts are spelled out
here. Every dimension is a different number.
"""

import json
import re
from dataclasses import replace

import gguf
import ml_dtypes
import numpy as np
import pytest

from pipeline.errors import PlanError
from pipeline.ops import Kernel
from pipeline.stage import Context
from pipeline.tensors.chunks import cut
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import numpy_dtype
from pipeline.tensors.views import JoinedStore, grain, split
from pipeline.testing.memory import MemoryStore, same, spec_of
from plugins.formats.gguf.file import GgufContainer as Container
from plugins.formats.gguf.general import METADATA
from plugins.formats.gguf.model import GgufDialect as Dialect
from plugins.formats.gguf.types import KEPT_WHOLE
from stages.load import Load
from tests.cases import toy_gpt_oss, toy_spm
from tests.cases.quantized import leaves_of, quantized

DEQUANTIZE, CAST = Kernel("dequantize", ("numpy",)), Kernel("cast", ("numpy",))

SIZES = {"num_hidden_layers": 7, "hidden_size": 96, "intermediate_size": 160, "num_attention_heads": 6}
SIZES |= {"num_key_value_heads": 2, "head_dim": 20, "vocab_size": toy_spm.SIZE, "max_position_embeddings": 512}
SIZES |= {"rms_norm_eps": 1e-6, "tie_word_embeddings": True, "dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}
GEMMA = {
    **SIZES,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "use_bidirectional_attention": False,
    "final_logit_softcapping": None,
    "sliding_window": 9,
    "sliding_window_pattern": 6,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "query_pre_attn_scalar": 20,
}
QWEN3 = {**SIZES, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu"}
QWEN3 |= {"attention_bias": False, "use_sliding_window": False, "rope_theta": 1000000.0, "rope_scaling": None}
MOE = {**QWEN3, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "moe_intermediate_size": 64}
MOE |= {"num_experts": 5, "num_experts_per_tok": 3, "norm_topk_prob": True, "decoder_sparse_step": 1}
MOE |= {"mlp_only_layers": []}
QWEN2 = {**SIZES, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu"}
QWEN2 |= {"attention_bias": True, "use_sliding_window": False, "rope_theta": 1000000.0, "rope_scaling": None}
QWEN2 |= {"tie_word_embeddings": False, "head_dim": 16}  # llama.cpp takes q to be as wide as the rest
CONFIGS = {"gemma3": GEMMA, "qwen2": QWEN2, "qwen3": QWEN3, "qwen3moe": MOE}
EXTRA = {
    "gemma3": {"attention.sliding_window": 9, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    "qwen3moe": {"expert_count": 5, "expert_used_count": 3, "expert_feed_forward_length": 64},
}


def shapes(config):
    """Hugging Face names and shapes, as the modeling files of transformers have them."""
    hidden, inter, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    kind = config["model_type"]
    out = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for n in range(config["num_hidden_layers"]):
        layer = f"model.layers.{n}"
        norms = ["input_layernorm", "post_attention_layernorm"]
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] * (kind == "gemma3_text")
        out |= {f"{layer}.{norm}.weight": (hidden,) for norm in norms}
        for x, rows in (("q", q), ("k", kv), ("v", kv)):
            out[f"{layer}.self_attn.{x}_proj.weight"] = (rows, hidden)
            if config["attention_bias"]:
                out[f"{layer}.self_attn.{x}_proj.bias"] = (rows,)
        out[f"{layer}.self_attn.o_proj.weight"] = (hidden, q)
        if kind != "qwen2":
            out |= {f"{layer}.self_attn.{x}_norm.weight": (head,) for x in "qk"}
        stems, width = [f"{layer}.mlp"], inter
        if kind == "qwen3_moe":
            out[f"{layer}.mlp.gate.weight"] = (config["num_experts"], hidden)
            stems = [f"{layer}.mlp.experts.{e}" for e in range(config["num_experts"])]
            width = config["moe_intermediate_size"]
        for stem in stems:
            out |= {f"{stem}.{x}_proj.weight": (width, hidden) for x in ("gate", "up")}
            out[f"{stem}.down_proj.weight"] = (hidden, width)
    out["model.norm.weight"] = (hidden,)
    return out if config["tie_word_embeddings"] else out | {"lm_head.weight": out["model.embed_tokens.weight"]}


def weights(config):
    """Matrices bf16, the rest fp32."""
    rng = np.random.default_rng(0)
    return {
        name: (0.1 * rng.standard_normal(shape)).astype(ml_dtypes.bfloat16 if len(shape) == 2 else np.float32)
        if "mlp.gate." not in name
        else rng.standard_normal(shape).astype(np.float32)
        for name, shape in shapes(config).items()
    }


def in_file(name, tensors):
    """The same under llama.cpp's names, by the gguf package; Gemma's norms plus one, experts stacked."""
    config = CONFIGS[name]
    arch = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == name)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    out, stacks = {}, {}
    for logical, array in tensors.items():
        if ".experts." in logical:
            stem, e, rest = logical.partition(".experts.")[0], *logical.partition(".experts.")[2].split(".", 1)
            stacks.setdefault(names.get_name(f"{stem}.experts.{rest}", (".weight",)), {})[int(e)] = array
            continue
        leaf = names.get_name(logical, (".weight", ".bias"))
        assert leaf is not None, logical
        out[leaf] = array + np.float32(1) if name == "gemma3" and logical.endswith("norm.weight") else array
    return out | {leaf: np.stack([found[e] for e in sorted(found)]) for leaf, found in stacks.items()}


def written(path, name, tensors, types=None):
    """A GGUF file by gguf-py: settings, tokenizer, tensors; `types`: block types that leaves are quantized to."""
    config = CONFIGS[name]
    w = gguf.GGUFWriter(path, name)
    w.add_name("Toy Of Mine")
    w.add_license("apache-2.0")
    w.add_tags(["toy", "test"])
    w.add_block_count(config["num_hidden_layers"])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    w.add_key_length(config["head_dim"])
    w.add_value_length(config["head_dim"])
    w.add_rope_freq_base(config["rope_theta"])
    for key, value in EXTRA.get(name, {}).items():
        add = {int: w.add_uint32, float: w.add_float32, str: w.add_string}[type(value)]
        add(f"{name}.{key}", value)
    kinds = {"string": w.add_string, "uint32": w.add_uint32, "bool": w.add_bool}
    for key, (kind, value) in toy_spm.kv(False).items():
        w.add_array(key, value) if kind.startswith("array") else kinds[kind](key, value)
    for leaf, array in tensors.items():
        kind = (types or {}).get(leaf)
        if kind is not None:
            w.add_tensor(leaf, gguf.quantize(array.astype(np.float32), kind), raw_dtype=kind)
        elif array.dtype == ml_dtypes.bfloat16:
            w.add_tensor(leaf, array.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            w.add_tensor(leaf, array)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def loaded(path):
    return Load(str(path), (Container(),), (Dialect(),)).run(Context(path.parent))


def same_value(one, other):
    """Equal types and values, numbers as the file's fp32 has them."""
    if one[0] == other[0] == "float32":
        return np.float32(one[1]) == np.float32(other[1])
    return one == other


@pytest.mark.parametrize("name", CONFIGS)
def test_files_of_the_package_both_ways(name, tmp_path):
    """Tensors, config.json and metadata of a file by gguf-py; written again, the same leaves and the same settings."""
    tensors = weights(CONFIGS[name])
    leaves = in_file(name, tensors)
    path = written(tmp_path / "model.gguf", name, leaves)
    checkpoint = loaded(path)
    assert set(checkpoint.store.specs) == set(tensors)
    for logical, array in tensors.items():
        got, want = checkpoint.store.read(logical), array
        if name == "gemma3" and logical.endswith("norm.weight"):
            want = (array + np.float32(1)) - np.float32(1)
        assert same(got, want), logical
        if array.ndim == 2:
            box = (slice(1, array.shape[0] - 2), slice(3, array.shape[1] - 1))
            assert same(checkpoint.store.read(logical, box), np.array(want[box])), logical
    assert {k: checkpoint.config.get(k) for k in CONFIGS[name]} == CONFIGS[name]
    assert json.loads(checkpoint.files[METADATA])["general.license"] == ["string", "apache-2.0"]

    taken = {n: json.loads(b) for n, b in checkpoint.files.items() if n in Dialect.takes}
    binding = Dialect().encode({n: spec_of(a) for n, a in tensors.items()}, {**checkpoint.config, **taken})
    made = leaves_of(binding, tensors)
    assert set(made) == set(leaves)
    for leaf, array in leaves.items():
        assert same(made[leaf], array), leaf
    before, after = Container().open(path).config()["gguf"]["kv"], binding.metadata["gguf"]["kv"]
    ours = {"general.type", "general.file_type", "rope.dimension_count", "rope.freq_base_swa"}
    assert {k.removeprefix(f"{name}.") for k in after.keys() - before.keys()} <= ours
    changed = {k for k in before if k not in after or not same_value(after[k], before[k])}
    assert changed <= {"tokenizer.ggml.scores"}  # of pieces that nothing is joined to


@pytest.mark.parametrize("elems", [1, 999])
def test_pieces_of_stacked_experts(elems, tmp_path):
    """Experts are tensors of their own; written piece by piece into the leaf that stacks them."""
    tensors = weights(MOE)
    binding = Dialect().encode({n: spec_of(a) for n, a in tensors.items()}, MOE)
    wanted = in_file("qwen3moe", tensors)
    made = {n: np.zeros(s.shape, numpy_dtype(s.dtype)) for n, s in binding.leaves.items()}
    for name, bound in binding.tensors.items():
        for piece in cut(name, bound.spec.shape, max(elems, bound.spec.size // 9), grain(bound)):
            for leaf, box, array in split(bound, piece.index, tensors[name][piece.index]):
                made[leaf][box] = array
    assert all(same(made[n], a) for n, a in wanted.items())


def test_quantized_experts_of_a_stack(tmp_path, monkeypatch):
    """Blocks of a scheme stay blocks, and structs what they are; a type without a scheme becomes values."""
    monkeypatch.setitem(CONFIGS, "qwen3moe", wide := {**MOE, "hidden_size": 256})
    leaves = in_file("qwen3moe", weights(wide))
    types = {n: gguf.GGMLQuantizationType.Q4_0 for n in leaves if "ffn_up_exps" in n}
    types |= {n: gguf.GGMLQuantizationType.Q5_0 for n in leaves if "ffn_down_exps" in n}
    types |= {n: gguf.GGMLQuantizationType.TQ2_0 for n in leaves if "ffn_gate_exps" in n}
    checkpoint = loaded(written(tmp_path / "model.gguf", "qwen3moe", leaves, types))
    assert checkpoint.origin.endswith("TQ2_0 decoded")
    up = checkpoint.store.read("model.layers.3.mlp.experts.4.up_proj.weight")
    assert isinstance(up, QTensor)
    assert up.shape == (64, 256)
    reader = {t.name: t.data for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    down = checkpoint.store.read("model.layers.3.mlp.experts.2.down_proj.weight")
    assert same(down, QTensor(np.array(reader["blk.3.ffn_down_exps.weight"][2]), scheme=KEPT_WHOLE["Q5_0"]))
    gate = gguf.dequantize(reader["blk.3.ffn_gate_exps.weight"], gguf.GGMLQuantizationType.TQ2_0)
    assert same(checkpoint.store.read("model.layers.3.mlp.experts.2.gate_proj.weight"), gate[2])


def problems(config, tensors=None):
    with pytest.raises(PlanError) as why:
        Dialect().encode({n: spec_of(a) for n, a in (tensors or weights(config)).items()}, config)
    return " ".join(str(p) for p in why.value.problems)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"query_pre_attn_scalar": 16}, "query_pre_attn_scalar is 16; llama.cpp computes 20"),
        ({"query_pre_attn_scalar": None}, "query_pre_attn_scalar is None"),
        ({"layer_types": ["full_attention"] * 3 + ["sliding_attention"] * 4}, "layer_types must be 7"),
        ({"layer_types": ["full_attention"]}, "layer_types must be 7"),
        ({"attn_logit_softcapping": 30.0}, "attn_logit_softcapping is 30.0"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ({"hidden_activation": "silu"}, "hidden_activation is 'silu'"),
        ({"sliding_window": None}, "sliding_window is None"),
        (
            {"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "rope_type of sliding layers is 'linear'",
        ),
    ],
)
def test_gemmas_that_a_file_cannot_say(change, text):
    assert text in problems({**GEMMA, **change})


def test_gemma_in_the_spelling_of_transformers_5():
    """Rotary settings by kind of layer; another period, base and softcap are written too."""
    rope = {"full_attention": {"rope_type": "default", "rope_theta": 5e5}, "sliding_attention": {"rope_theta": 2e4}}
    types = ["sliding_attention", "sliding_attention", "full_attention"] * 2 + ["sliding_attention"]
    config = {k: v for k, v in GEMMA.items() if not k.startswith(("rope_", "sliding_window_pattern"))}
    config |= {"rope_parameters": rope, "layer_types": types, "final_logit_softcapping": 30.0}
    tensors = weights(GEMMA)
    binding = Dialect().encode({n: spec_of(a) for n, a in tensors.items()}, config)
    given = binding.metadata["gguf"]
    kv = {k.removeprefix("gemma3."): v for k, v in given["kv"].items()}
    assert kv["rope.freq_base"] == ("float32", 5e5)
    assert kv["rope.freq_base_swa"] == ("float32", 2e4)
    assert kv["attention.sliding_window_pattern"] == ("uint32", 3)
    assert kv["final_logit_softcapping"] == ("float32", 30.0)
    back = Dialect().decode(binding.leaves, {"gguf": given}).config
    assert (back["rope_theta"], back["rope_local_base_freq"], back["layer_types"]) == (5e5, 2e4, types)
    assert (back["sliding_window_pattern"], back["final_logit_softcapping"]) == (3, 30.0)


def test_experts_in_the_spelling_of_transformers_5():
    """It saves `num_experts` of Qwen3-MoE as `num_local_experts`."""
    config = {k: v for k, v in MOE.items() if k != "num_experts"}
    encoded = [Dialect().encode({n: spec_of(a) for n, a in weights(MOE).items()}, c) for c in (MOE, config | {
        "num_local_experts": MOE["num_experts"]
    })]  # fmt: skip
    assert encoded[0].metadata["gguf"]["kv"] == encoded[1].metadata["gguf"]["kv"]
    assert "num_experts is missing" in problems(config, weights(MOE))


@pytest.mark.parametrize("pattern", [0, "6", [True] * 6])
def test_patterns_that_are_none(pattern):
    binding = Dialect().encode({n: spec_of(a) for n, a in weights(GEMMA).items()}, GEMMA)
    given = binding.metadata["gguf"]
    kv = {**given["kv"], "gemma3.attention.sliding_window_pattern": ("any", pattern)}
    with pytest.raises(PlanError, match=r"gemma3\.attention\.sliding_window_pattern: is .* a period"):
        Dialect().decode(binding.leaves, {"gguf": {**given, "kv": kv}})


def test_a_pattern_layer_by_layer():
    binding = Dialect().encode({n: spec_of(a) for n, a in weights(GEMMA).items()}, GEMMA)
    given = binding.metadata["gguf"]
    slides = [True, False, False, True, True, True, False]
    kv = {**given["kv"], "gemma3.attention.sliding_window_pattern": ("array:bool", slides)}
    config = Dialect().decode(binding.leaves, {"gguf": {**given, "kv": kv}}).config
    assert [t == "sliding_attention" for t in config["layer_types"]] == slides
    assert "sliding_window_pattern" not in config


def test_gemma_27b_scales_queries_by_its_width():
    from plugins.formats.common.sizes import Sizes
    from plugins.formats.gguf.gemma import query_scale

    of_27b = Sizes(layers=62, hidden=5376, inter=21504, heads=32, kv_heads=16, head_dim=128, vocab=262144)
    assert query_scale(of_27b) == 168  # google/gemma-3-27b-it


def test_moe_that_a_file_cannot_say():
    assert "norm_topk_prob is False" in problems({k: v for k, v in MOE.items() if k != "norm_topk_prob"})
    assert "decoder_sparse_step is 2" in problems({**MOE, "decoder_sparse_step": 2})
    missing = {n: a for n, a in weights(MOE).items() if "experts.3.up" not in n}
    assert "model.layers.0.mlp.experts.3.up_proj.weight: missing" in problems(MOE, missing)


def test_what_is_wrong_with_a_stack_is_said_once():
    binding = Dialect().encode({n: spec_of(a) for n, a in weights(MOE).items()}, MOE)
    given = binding.metadata["gguf"]
    leaves = {n: s for n, s in binding.leaves.items() if n != "blk.2.ffn_up_exps.weight"}
    with pytest.raises(PlanError) as why:
        Dialect().decode(leaves, {"gguf": given})
    assert [p.where for p in why.value.problems] == ["blk.2.ffn_up_exps.weight"]


def test_mistral_is_a_llama():
    """Written under llama.cpp's one name for both; a window, which that architecture does not have, is refused."""
    from tests.cases import toy_llama

    config = {**toy_llama.CONFIG, "model_type": "mistral", "sliding_window": None}
    tensors = toy_llama.weights()
    binding = Dialect().encode({n: spec_of(a) for n, a in tensors.items()}, config)
    assert binding.metadata["gguf"]["kv"]["general.architecture"] == ("string", "llama")
    assert all(same(a, toy_llama.gguf_leaves(tensors)[n]) for n, a in leaves_of(binding, tensors).items())
    assert "sliding_window is 4096" in problems({**config, "sliding_window": 4096}, tensors)
    del config["sliding_window"]
    assert "sliding_window is absent, which means 4096" in problems(config, tensors)


# --- NVFP4's second scale, and what is kept of the metadata


NVFP4 = Scheme("e2m1", 16, "e4m3", second="f32")


def nvfp4_gpt_oss():
    """gpt-oss with gate and up of the experts in NVFP4, one second scale a matrix."""
    toy = toy_gpt_oss.make("hf", "mxfp4")
    tensors = {n: QTensor(*v, MXFP4) if isinstance(v, tuple) else v for n, v in toy.logical.items()}
    for name, value in tensors.items():
        if name.endswith("gate_up_proj"):  # rows of the other are no whole NVFP4 blocks of GGUF
            tensors[name] = quantized(NVFP4, value.shape, 3)
    return tensors, toy.config


def is_nvfp4(value):
    return isinstance(value, QTensor) and value.scheme == NVFP4


def test_second_scales_of_gate_and_up():
    """The two leaves of a fused tensor repeat its one scale a matrix; equal ones are read as one, others refused."""
    tensors, config = nvfp4_gpt_oss()
    alone = Scheme("e2m1", 16, "e4m3")
    first = {n: QTensor(v.codes, v.scales, alone) if is_nvfp4(v) else v for n, v in tensors.items()}
    written = Dialect().encode({n: spec_of(a) for n, a in first.items()}, config)
    seconds = {
        f"blk.{n}.ffn_{x}_exps.scale": tensors[f"model.layers.{n}.mlp.experts.gate_up_proj"].second.reshape(-1)
        for n in range(toy_gpt_oss.LAYERS)
        for x in ("gate", "up")
    }
    leaves = leaves_of(written, first) | seconds
    binding = replace(written, leaves=dict(written.leaves) | {n: spec_of(a) for n, a in seconds.items()})
    binding.metadata["gguf"]["types"].update(dict.fromkeys(seconds, "F32"))
    peeked = {n: a for n, a in leaves.items() if n.endswith("_exps.scale")}
    given = {"gguf": binding.metadata["gguf"], "<leaves>": peeked}
    store = JoinedStore(MemoryStore(leaves), Dialect().decode(binding.leaves, given))
    for logical, value in tensors.items():
        if isinstance(value, QTensor):
            assert same(store.read(logical), value), logical
    other = {**peeked, "blk.1.ffn_up_exps.scale": peeked["blk.1.ffn_up_exps.scale"] * 2}
    with pytest.raises(PlanError, match=r"blk\.1\.ffn_up_exps\.scale: .* need the same second scales"):
        Dialect().decode(binding.leaves, {**given, "<leaves>": other})
    alone = {n: s for n, s in binding.leaves.items() if n != "blk.1.ffn_up_exps.scale"}
    with pytest.raises(PlanError, match="need the same second scales"):
        Dialect().decode(alone, given)


def in_nvfp4(config, *ends):
    """Specs with the matrices whose names end so in NVFP4, all as wide as takes whole blocks of it."""
    wide = {"hidden_size": 384, "intermediate_size": 640, "moe_intermediate_size": 256, "head_dim": 64}
    config = {**config, **{k: v for k, v in wide.items() if k in config}, "query_pre_attn_scalar": 64}
    specs = {n: spec_of(a) for n, a in weights(config).items()}
    return config, {n: replace(s, scheme=NVFP4) if n.endswith(ends) else s for n, s in specs.items()}


# Which products llama.cpp (of llama_cpp_python 0.3.36) multiplies by a second scale, found by comparing logits of toys
# with transformers': they were NaN (qwen2, gemma3) or another model's (gpt-oss) elsewhere, and files whose embedding
# has such scales did not load.
SECOND = {
    "qwen2": ("self_attn.q_proj.weight", "self_attn.o_proj.weight", "lm_head.weight"),
    "qwen3": ("self_attn.v_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"),
    "qwen3moe": ("self_attn.k_proj.weight", ".up_proj.weight", ".down_proj.weight"),
    "gemma3": ("self_attn.q_proj.weight", "self_attn.o_proj.weight"),
}
NO_SECOND = {
    "qwen2": ("mlp.gate_proj.weight", "mlp.down_proj.weight", "embed_tokens.weight"),
    "qwen3": ("embed_tokens.weight",),
    "qwen3moe": ("embed_tokens.weight",),
    "gemma3": ("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight", "embed_tokens.weight"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_second_scales_are_written_where_llama_cpp_multiplies_by_them(name):
    config, specs = in_nvfp4(CONFIGS[name], *SECOND[name])
    leaves = Dialect().encode(specs, config).leaves
    packed = {re.sub(r"experts\.\d+", "experts", n) for n in specs if n.endswith(SECOND[name])}  # a stack has one leaf
    assert len([n for n in leaves if n.endswith(".scale")]) == len(packed)
    for end in NO_SECOND[name]:
        config, specs = in_nvfp4(CONFIGS[name], end)
        with pytest.raises(PlanError, match=r"leaves its second scales out: quantize with quant\.second=null"):
            Dialect().encode(specs, config)
        none = {n: replace(s, scheme=replace(NVFP4, second=None)) if s.scheme else s for n, s in specs.items()}
        assert not [n for n in Dialect().encode(none, config).leaves if n.endswith(".scale")]


def test_second_scales_of_experts_that_llama_cpp_leaves_out():
    tensors, config = nvfp4_gpt_oss()
    with pytest.raises(PlanError, match=r"experts\.gate_up_proj: .*leaves its second scales out"):
        Dialect().encode({n: spec_of(a) for n, a in tensors.items()}, config)


@pytest.mark.parametrize(
    "kept",
    [
        {"general.architecture": ["string", "llama"]},
        {"llama.block_count": ["uint32", 3]},
        {"general.name": "toy"},
        {"general.name": ["text", "toy"]},
        {"general.name": ["string", 3]},
        {"general.version": ["uint32", -1]},
        {"general.version": ["bool", 1]},
        {"general.tags": ["array:string", ["a", 1]]},
        ["general.name"],
    ],
)
def test_metadata_that_cannot_be_kept(kept):
    assert f"{METADATA}: " in problems({**GEMMA, METADATA: kept})


def test_metadata_without_its_tokenizer():
    """Settings of a tokenizer that is no longer there are left out, the rest is kept."""
    kept = {"general.author": ["string", "me"], "tokenizer.ggml.eot_token_id": ["uint32", 3]}
    binding = Dialect().encode({n: spec_of(a) for n, a in weights(GEMMA).items()}, {**GEMMA, METADATA: kept})
    kv = binding.metadata["gguf"]["kv"]
    assert kv["general.author"] == ("string", "me")
    assert "tokenizer.ggml.eot_token_id" not in kv


@pytest.mark.parametrize(
    ("v", "down", "number"),
    [
        ("4464466", "4464466", gguf.LlamaFileType.MOSTLY_Q4_K_M),
        ("5555444", "4444444", gguf.LlamaFileType.MOSTLY_Q4_K_S),
        ("4444444", "4444444", gguf.LlamaFileType.MOSTLY_Q4_K_S),  # of no mix: by what most values are
    ],
)
def test_files_say_which_mix_they_are(v, down, number):
    """Of seven layers the last two, and each third, have more bits; what is not packed says nothing."""
    wide = {**QWEN3, "hidden_size": 256, "intermediate_size": 512}
    specs = {n: spec_of(a) for n, a in weights(wide).items()}
    digits = dict.fromkeys(("q_proj", "k_proj", "gate_proj", "up_proj"), 7 * "4") | {"v_proj": v, "down_proj": down}
    for (layer, digit), name in ((d, n) for n in digits for d in enumerate(digits[n])):
        at = next(n for n in specs if f"layers.{layer}." in n and f".{name}." in n)
        specs[at] = replace(specs[at], dtype="BF16", scheme=KEPT_WHOLE[f"Q{digit}_K"])
    kv = Dialect().encode(specs, wide).metadata["gguf"]["kv"]
    assert kv["general.file_type"] == ("uint32", number)

"""The GGUF dialect against toys spelled out by hand, llama.cpp's own name tables, and config.json both ways."""

import json

import gguf
import numpy as np
import pytest

from pipeline.errors import PlanError
from pipeline.formats import PEEKED
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec, dtype_name
from pipeline.tensors.views import JoinedStore, split
from pipeline.testing.memory import MemoryStore, same, spec_of
from plugins.formats.gguf.archs import ARCHS
from plugins.formats.gguf.config import sizes_of
from plugins.formats.gguf.model import GgufDialect
from plugins.formats.gguf.packing import pack, unpack
from plugins.formats.gguf.table import entries
from plugins.formats.gguf.types import GGML, KEPT_WHOLE, SCHEMES
from tests.cases import toy_gpt_oss, toy_llama
from tests.cases.quantized import leaves_of, quantized

DEQUANTIZE, CAST = Kernel("dequantize", ("numpy",)), Kernel("cast", ("numpy",))


def told(kv, types, peeked=None):
    """What a loader hands to `decode`."""
    return {"gguf": {"kv": kv, "types": types}, PEEKED: peeked or {}}


def plain_types(leaves):
    return {n: dtype_name(a.dtype) for n, a in leaves.items()}


def specs_of(leaves):
    return {n: TensorSpec(a.shape, dtype_name(a.dtype)) for n, a in leaves.items()}


def problems(call):
    with pytest.raises(PlanError) as why:
        call()
    return {p.where: str(p) for p in why.value.problems}


def encode(tensors, config, dialect=None):
    return (dialect or GgufDialect()).encode({n: spec_of(v) for n, v in tensors.items()}, config)


# --- names


@pytest.mark.parametrize("name", ARCHS)
def test_names_are_llama_cpps(name):
    """Every leaf of a table is a tensor of that architecture in the gguf package, under the same name there."""
    arch = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == name)
    mapped = gguf.get_tensor_name_map(arch, 2)
    known = {gguf.TENSOR_NAMES[t].format(bid=n) for t in gguf.MODEL_TENSORS[arch] for n in range(2)}
    config = {
        **toy_llama.CONFIG,
        "num_hidden_layers": 2,
        "attention_bias": True,
        "mlp_bias": True,
        "num_local_experts": 5,
    }
    for entry in entries(ARCHS[name], sizes_of(config)):
        for leaf in entry.leaves:
            assert leaf.rpartition(".")[0] in known, leaf
        if len(entry.leaves) == 1 and "experts" not in entry.logical:
            theirs = mapped.get_name(entry.logical, try_suffixes=(".weight", ".bias"))
            assert theirs in (*entry.leaves, entry.leaves[0].removesuffix(".weight")), entry.logical


# --- llama


@pytest.mark.parametrize(("tied", "bias"), [(False, False), (True, False), (False, True)])
def test_llama_both_ways(tied, bias):
    tensors = toy_llama.weights(tied=tied, bias=bias)
    wanted = toy_llama.gguf_leaves(tensors)
    config = {**toy_llama.CONFIG, "tie_word_embeddings": tied, "attention_bias": bias, "mlp_bias": bias}
    binding = encode(tensors, config)
    assert list(binding.leaves) == list(wanted)
    made = leaves_of(binding, tensors)
    for name, array in wanted.items():
        assert same(made[name], array), name
    decoded = GgufDialect().decode(specs_of(wanted), told(toy_llama.KV_METADATA, plain_types(wanted)))
    store = JoinedStore(MemoryStore(wanted), decoded)
    assert list(store.specs) == list(tensors)
    for name, array in tensors.items():
        assert same(store.read(name), array), name
        if array.ndim == 2:  # boxes that cut heads are widened for reading, and cut down
            box = (slice(3, array.shape[0] - 5), slice(2, array.shape[1] - 1))
            assert same(store.read(name, box), np.array(array[box])), name
    for key in ("hidden_size", "head_dim", "num_key_value_heads", "tie_word_embeddings", "attention_bias", "mlp_bias"):
        assert decoded.config[key] == config[key]
    assert (decoded.config["rms_norm_eps"], decoded.config["rope_theta"]) == (1e-5, 10000.0)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "MXFP4", "NVFP4"])
def test_llama_in_blocks(kind):
    """A file of quantized matrices, q and k permuted row by row: read as it is meant, written back to the byte."""
    rng = np.random.default_rng(1)
    plain = toy_llama.weights()
    tensors, types = {}, {}
    for name, array in plain.items():
        fits = array.ndim == 2 and array.shape[-1] % GGML[kind].block == 0
        tensors[name] = quantized(SCHEMES[kind], array.shape, int(rng.integers(99))) if fits else array
    heads = {"q_proj": toy_llama.HEADS, "k_proj": toy_llama.KV_HEADS}
    leaves = {}
    for name, value in tensors.items():
        (leaf,) = toy_llama.gguf_leaves({name: plain[name]})
        packed = isinstance(value, QTensor)
        types[leaf] = kind if packed else dtype_name(plain[name].dtype)
        stored = pack(kind, value) if packed else plain[name]
        count = next((h for p, h in heads.items() if p in name), None)
        leaves[leaf] = toy_llama.permute(stored, count) if count else stored
    decoded = GgufDialect().decode(specs_of(leaves), told(toy_llama.KV_METADATA, types))
    store = JoinedStore(MemoryStore(leaves), decoded)
    for name, value in tensors.items():
        got = store.read(name)
        assert (
            all(same(got.component(c), a) for c, a in value.components.items())
            if isinstance(value, QTensor)
            else same(got, value)
        )
    binding = encode(tensors, toy_llama.CONFIG)
    assert binding.metadata["gguf"]["types"] == types
    assert all(same(a, leaves[n]) for n, a in leaves_of(binding, tensors).items())


def test_norms_and_biases_are_widened():
    tensors = {n: a.astype(toy_llama.ml_dtypes.bfloat16) for n, a in toy_llama.weights(bias=True).items()}
    binding = encode(tensors, {**toy_llama.CONFIG, "attention_bias": True, "mlp_bias": True})
    for name, spec in binding.leaves.items():
        assert spec.dtype == ("BF16" if len(spec.shape) == 2 else "F32"), name
    made = leaves_of(binding, tensors)
    norm = tensors["model.norm.weight"].astype(np.float32)
    assert same(made["output_norm.weight"], norm)


def test_pieces_of_any_size_reassemble():
    """What export does: pieces along the grain of the target, each written where it belongs."""
    from pipeline.tensors.chunks import cut
    from pipeline.tensors.views import grain

    tensors = toy_llama.weights()
    binding = encode(tensors, toy_llama.CONFIG)
    wanted = leaves_of(binding, tensors)
    for elems in (1, 700, 3000):
        made = {n: np.zeros_like(a) for n, a in wanted.items()}
        for name, bound in binding.tensors.items():
            for piece in cut(name, bound.spec.shape, elems, grain(bound)):
                for leaf, box, array in split(bound, piece.index, tensors[name][piece.index]):
                    made[leaf][box] = array
        assert all(same(made[n], a) for n, a in wanted.items())


def test_structs_stay_the_bytes_that_they_are():
    """Rows of the queries are put in Hugging Face's order as rows of blocks."""
    tensors = toy_llama.weights()
    leaves = toy_llama.gguf_leaves(tensors)
    types = plain_types(leaves)
    rng, across = np.random.default_rng(5), toy_llama.HIDDEN // 32 * 22
    blocks = rng.integers(0, 60, (toy_llama.VOCAB, across), dtype=np.uint8)
    turned = rng.integers(0, 60, (toy_llama.Q, across), dtype=np.uint8)
    queries = toy_llama.permute(turned, toy_llama.HEADS)
    for leaf, array in (("token_embd.weight", blocks), ("blk.1.attn_q.weight", queries)):
        leaves[leaf], types[leaf] = array, "Q5_0"
    kv = {**toy_llama.KV_METADATA, "tokenizer.ggml.model": ("string", "llama"), "tokenizer.ggml.pre": ("string", "x")}
    decoded = GgufDialect().decode(specs_of(leaves), told(kv, types))
    assert decoded.notes == ("tokenizer llama/x left out",)
    store = JoinedStore(MemoryStore(leaves), decoded)
    name, scheme = "model.embed_tokens.weight", KEPT_WHOLE["Q5_0"]
    assert store.specs[name] == TensorSpec((toy_llama.VOCAB, toy_llama.HIDDEN), "BF16", scheme)
    assert same(store.read(name, (slice(7, 9),)), QTensor(blocks[7:9], scheme=scheme))
    assert same(store.read("model.layers.1.self_attn.q_proj.weight"), QTensor(turned, scheme=scheme))
    theirs = gguf.dequantize(blocks, gguf.GGMLQuantizationType.Q5_0)
    assert np.array_equal(DEQUANTIZE(store.read(name), "F32"), theirs)


def test_rope_scaling_of_llama_3():
    """Stored as a tensor of factors; read back into config.json by the numbers that make them."""
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    config = {**toy_llama.CONFIG, "rope_parameters": {"rope_theta": 500000.0, **scaling}}
    tensors = toy_llama.weights()
    binding = encode(tensors, config)
    factors = np.frombuffer(binding.constants["rope_freqs.weight"], "<f4")
    assert factors.shape == (toy_llama.HEAD_DIM // 2,)
    assert (factors[0], factors[-1]) == (1, 32)
    assert next(iter(binding.leaves)) == "rope_freqs.weight"
    given = binding.metadata["gguf"]
    config = told(given["kv"], given["types"], {"rope_freqs.weight": factors})
    decoded = GgufDialect().decode(binding.leaves, config)
    assert decoded.config["rope_scaling"] == scaling
    assert decoded.config["rope_theta"] == 500000.0
    assert list(decoded.ignored) == ["rope_freqs.weight"]
    for context in (24, 1000):  # of fewer positions than Llama's own
        scaling["original_max_position_embeddings"] = context
        config = {**toy_llama.CONFIG, "rope_parameters": {"rope_theta": 5000.0, **scaling}}
        binding = encode(tensors, config)
        given = binding.metadata["gguf"]
        factors = np.frombuffer(binding.constants["rope_freqs.weight"], "<f4")
        config = told(given["kv"], given["types"], {"rope_freqs.weight": factors})
        assert GgufDialect().decode(binding.leaves, config).config["rope_scaling"] == scaling
    strange = told(given["kv"], given["types"], {"rope_freqs.weight": factors * np.linspace(1, 2, factors.size)})
    assert (
        "not those of llama 3" in problems(lambda: GgufDialect().decode(binding.leaves, strange))["rope_freqs.weight"]
    )


YARN = {"rope_type": "yarn", "rope_theta": 400.0, "factor": 4.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("more", "times", "back"),
    [
        ({}, None, None),
        ({"attention_factor": 1.7}, 1.7, 1.7),
        ({"mscale": 1.5, "mscale_all_dim": 0.7}, (1 + 0.15 * np.log(4)) / (1 + 0.07 * np.log(4)), "any"),
        ({"attention_factor": 1.0}, 1.0, 1.0),
        ({"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}, None, None),
    ],
)
def test_yarn_as_llama_cpp_runs_it(more, times, back):
    """Sines and cosines are multiplied by 1 + ln(factor) / 10 there, and by `attn_factor`."""
    tensors = toy_llama.weights()
    binding = encode(tensors, {**toy_llama.CONFIG, "rope_parameters": {**YARN, **more}})
    kv = binding.metadata["gguf"]["kv"]
    assert "llama.rope.scaling.yarn_attn_factor" not in kv
    found = kv.get("llama.rope.scaling.attn_factor", ("float32", 1))[1]
    assert found == pytest.approx(1 if times is None else times / (1 + 0.1 * np.log(4)))
    scaling = GgufDialect().decode(binding.leaves, told(kv, binding.metadata["gguf"]["types"])).config["rope_scaling"]
    if back == "any":
        assert scaling.pop("attention_factor") == pytest.approx(times)
    elif back is not None:
        assert scaling.pop("attention_factor") == back
    assert scaling == {k: v for k, v in YARN.items() if k != "rope_theta"} | {
        k: v for k, v in more.items() if k.startswith("beta")
    }


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"beta_fast": 4.0}, "beta_fast 4, beta_slow 1, truncate true: llama.cpp has 32, 1 and true"),
        ({"truncate": False}, "truncate false: llama.cpp has"),
        ({"beta_slow": 0.0}, "beta_slow: 0.0 must be positive"),
        ({"rope_theta": 1.0}, "rope_theta is 1"),
    ],
)
def test_yarn_that_llama_cpp_would_run_otherwise(more, text):
    with pytest.raises(PlanError, match=text):
        encode(toy_llama.weights(), {**toy_llama.CONFIG, "rope_parameters": {**YARN, **more}})


def test_betas_that_change_nothing():
    """Ends before the first pair are its own: those of a short context, whatever the betas."""
    config = {**toy_llama.CONFIG, "rope_parameters": {**YARN, "original_max_position_embeddings": 24, "beta_fast": 3.0}}
    assert encode(toy_llama.weights(), config).metadata["gguf"]["kv"]["llama.rope.scaling.yarn_beta_fast"][1] == 3


@pytest.mark.parametrize(
    ("inside", "beside", "context"),
    [({"original_max_position_embeddings": 99}, {"original_max_position_embeddings": 4096}, 4096), ({}, {}, 2048)],
)
def test_the_context_is_that_of_the_model(inside, beside, context):
    """Beside the other settings it goes first, and where there is none, the longest one counts."""
    rope = {"rope_type": "yarn", "rope_theta": 400.0, "factor": 4.0, **inside}
    config = {**toy_llama.CONFIG, "max_position_embeddings": 2048, "rope_parameters": rope, **beside}
    kv = encode(toy_llama.weights(), config).metadata["gguf"]["kv"]
    assert kv["llama.rope.scaling.original_context_length"] == ("uint32", context)


# --- gpt-oss


def gpt_oss(experts):
    toy = toy_gpt_oss.make("hf", experts)
    tensors = {n: QTensor(*v, MXFP4) if isinstance(v, tuple) else v for n, v in toy.logical.items()}
    return tensors, toy.config


def test_gpt_oss_that_is_silent():
    """Its ropes are then those of gpt-oss, and no plain ones, and what has biases has them nevertheless."""
    tensors, config = gpt_oss("bf16")
    silent = {k: v for k, v in config.items() if k not in ("rope_parameters", "attention_bias")}
    kv = encode(tensors, silent).metadata["gguf"]["kv"]
    wanted = {
        "freq_base": 15e4,
        "scaling.type": "yarn",
        "scaling.factor": 32.0,
        "scaling.original_context_length": 4096,
    }
    assert {key: kv[f"gpt-oss.rope.{key}"][1] for key in wanted} == wanted


@pytest.mark.parametrize("experts", ["bf16", "mxfp4"])
def test_gpt_oss_both_ways(experts):
    tensors, config = gpt_oss(experts)
    binding = encode(tensors, config)
    leaves = leaves_of(binding, tensors)
    for n in range(toy_gpt_oss.LAYERS):
        mlp, blk = f"model.layers.{n}.mlp.experts", f"blk.{n}"
        bias = tensors[f"{mlp}.gate_up_proj_bias"].astype(np.float32)
        assert same(leaves[f"{blk}.ffn_gate_exps.bias"], np.ascontiguousarray(bias[:, ::2]))
        assert same(leaves[f"{blk}.ffn_up_exps.bias"], np.ascontiguousarray(bias[:, 1::2]))
        both = tensors[f"{mlp}.gate_up_proj"]
        for i, name in enumerate(("gate", "up")):
            leaf = leaves[f"{blk}.ffn_{name}_exps.weight"]
            assert leaf.shape[:2] == (toy_gpt_oss.EXPERTS, toy_gpt_oss.INTER)
            if experts == "bf16":
                assert same(leaf, np.ascontiguousarray(both[:, i::2]))
            else:
                q = unpack("MXFP4", leaf)
                assert same(q.codes, np.ascontiguousarray(both.codes[:, i::2]))
                assert same(q.scales, np.ascontiguousarray(both.scales[:, i::2]))
    given = binding.metadata["gguf"]
    decoded = GgufDialect().decode(binding.leaves, told(given["kv"], given["types"]))
    store = JoinedStore(MemoryStore(leaves), decoded)
    assert list(store.specs) == list(tensors)
    for name, value in tensors.items():
        got = store.read(name)
        narrow = got if isinstance(got, QTensor) else got.astype(value.dtype)
        assert same(narrow, value), name
    box = (slice(1, 3), slice(3, 10))  # cuts a pair of gate and up
    got = store.read("model.layers.0.mlp.experts.gate_up_proj", box)
    assert same(got, MemoryStore(tensors).read("model.layers.0.mlp.experts.gate_up_proj", box))


@pytest.mark.parametrize("v4", [False, True])
def test_gpt_oss_config_both_ways(v4):
    toy = toy_gpt_oss.make("hf", "mxfp4", v4=v4)
    tensors, _ = gpt_oss("mxfp4")
    binding = encode(tensors, toy.config)
    kv = binding.metadata["gguf"]["kv"]
    assert kv["gpt-oss.rope.scaling.type"] == ("string", "yarn")
    assert kv["gpt-oss.expert_count"] == ("uint32", toy_gpt_oss.EXPERTS)
    assert kv["gpt-oss.attention.sliding_window"] == ("uint32", toy_gpt_oss.WINDOW)
    decoded = GgufDialect().decode(binding.leaves, told(kv, binding.metadata["gguf"]["types"]))
    left_out = {
        "attention_dropout",
        "eos_token_id",
        "initial_context_length",
        "initializer_range",
        "quantization_config",
    }
    for key, value in toy_gpt_oss.make("hf", "mxfp4", v4=True).config.items():
        if key not in left_out:
            assert decoded.config[key] == value, key


def test_gpt_oss_refuses_what_llama_cpp_has_in_code():
    tensors, config = gpt_oss("bf16")
    wrong = {**config, "swiglu_limit": 6.0, "layer_types": ["full_attention"] * toy_gpt_oss.LAYERS}
    with pytest.raises(PlanError) as why:
        encode(tensors, wrong)
    texts = " ".join(str(p) for p in why.value.problems)
    assert "swiglu_limit is 6.0" in texts
    assert "layer_types must be" in texts
    yarn = {**config["rope_parameters"], "truncate": True}
    with pytest.raises(PlanError, match="truncate is true; a GGUF file cannot say so"):
        encode(tensors, {**config, "rope_parameters": yarn})


def test_gpt_oss_that_is_not_scaled():
    """A file without scaling is not the gpt-oss that is scaled where config.json says nothing."""
    tensors, config = gpt_oss("bf16")
    binding = encode(tensors, {**config, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}})
    given = binding.metadata["gguf"]
    decoded = GgufDialect().decode(binding.leaves, told(given["kv"], given["types"]))
    assert decoded.config["rope_scaling"] == {"rope_type": "default"}


# --- what is refused


def test_everything_wrong_at_once_when_reading():
    leaves = toy_llama.gguf_leaves(toy_llama.weights())
    types = plain_types(leaves)
    specs = specs_of(leaves)
    del specs["blk.1.ffn_up.weight"]
    specs["blk.0.attn_q.weight"] = TensorSpec((5, 7), "BF16")
    specs["blk.2.ffn_down.weight"], types["blk.2.ffn_down.weight"] = TensorSpec((128, 192), "I8"), "I8"
    types["blk.2.ffn_up.weight"] = "Q1_0"
    specs["blk.0.ffn_gate_inp.weight"], types["blk.0.ffn_gate_inp.weight"] = TensorSpec((4, 128), "F32"), "F32"
    found = problems(lambda: GgufDialect().decode(specs, told(toy_llama.KV_METADATA, types)))
    wrong = ["0.attn_q", "0.ffn_gate_inp", "1.ffn_up", "2.ffn_down", "2.ffn_up"]
    assert found.keys() == {f"blk.{name}.weight" for name in wrong}
    assert "missing; model.layers.1.mlp.up_proj.weight [192, 128]" in found["blk.1.ffn_up.weight"]
    assert "BF16[5, 7], expected BF16[96, 128]" in found["blk.0.attn_q.weight"]
    assert "has type I8" in found["blk.2.ffn_down.weight"]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"general.architecture": ("string", "llamb")}, "general.architecture"),
        ({"llama.block_count": None}, "llama.block_count"),
        ({"llama.block_count": ("uint32", 0)}, "llama.block_count"),
        ({"llama.attention.head_count": ("array:uint32", [6, 6, 6])}, "llama.attention.head_count"),
        ({"llama.attention.head_count_kv": ("uint32", 4)}, "llama.attention.head_count_kv"),
        ({"llama.attention.layer_norm_rms_epsilon": ("string", "x")}, "llama.attention.layer_norm_rms_epsilon"),
        ({"llama.attention.value_length": ("uint32", 8)}, "llama.attention.value_length"),
        ({"llama.rope.dimension_count": ("uint32", 8)}, "llama.rope.dimension_count"),
        ({"llama.attention.key_length": ("string", "16")}, "llama.attention.key_length"),
        ({"llama.expert_count": ("uint32", 8)}, "llama.expert_count"),
        ({"llama.rope.scaling.type": ("string", "longrope")}, "llama.rope.scaling.type"),
    ],
)
def test_metadata_that_is_wrong(change, where):
    leaves = toy_llama.gguf_leaves(toy_llama.weights())
    kv = {k: v for k, v in {**toy_llama.KV_METADATA, **change}.items() if v is not None}
    kv.setdefault("general.architecture", ("string", "llama"))
    assert where in problems(lambda: GgufDialect().decode(specs_of(leaves), told(kv, plain_types(leaves))))


def test_everything_wrong_at_once_when_writing():
    tensors = {n: spec_of(a) for n, a in toy_llama.weights().items()}
    tensors["model.norm.weight"] = TensorSpec((128,), "BF16", MXFP4)
    tensors["model.embed_tokens.weight"] = TensorSpec((67, 128), "BF16", Scheme("nf4", 64, "f32"))
    tensors["model.layers.0.mlp.up_proj.weight"] = TensorSpec((192, 128), "F8_E4M3")
    tensors["model.layers.1.self_attn.o_proj.weight"] = TensorSpec((128, 96), "BF16", SCHEMES["NVFP4"])
    del tensors["model.layers.2.mlp.up_proj.weight"]
    tensors["model.layers.2.mlp.up.weight"] = TensorSpec((192, 128), "BF16")
    found = problems(lambda: GgufDialect().encode(tensors, toy_llama.CONFIG))
    assert found.keys() == {
        "model.norm.weight",
        "model.embed_tokens.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.1.self_attn.o_proj.weight",
        "model.layers.2.mlp.up_proj.weight",
        "model.layers.2.mlp.up.weight",
    }
    assert "nf4/64/f32; a GGUF file can be written with plain BF16" in found["model.embed_tokens.weight"]
    assert "blocks of 64" in found["model.layers.1.self_attn.o_proj.weight"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model_type": "lama"}, "did you mean|known: llama"),
        ({"hidden_size": None}, "hidden_size is None"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"vocab_size": "67"}, "vocab_size is '67'"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "rope_type 'longrope'"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "partial_rotary",
        ),
        (
            {"rope_parameters": {**YARN, "original_max_position_embeddings": 0.5}},
            "original_max_position_embeddings is 0.5",
        ),
        ({"is_causal": False}, "is_causal: False"),
    ],
)
def test_configs_that_cannot_be_written(change, text):
    tensors = toy_llama.weights()
    with pytest.raises(PlanError, match=text):
        encode(tensors, {**toy_llama.CONFIG, **change})


def test_gate_and_up_must_agree():
    tensors, config = gpt_oss("mxfp4")
    binding = encode(tensors, config)
    given = binding.metadata["gguf"]
    types = {**given["types"], "blk.1.ffn_up_exps.weight": "Q8_0"}
    found = problems(lambda: GgufDialect().decode(binding.leaves, told(given["kv"], types)))
    assert "the two are one tensor" in found["blk.1.ffn_up_exps.weight"]


def test_general_metadata():
    tensors, config = gpt_oss("mxfp4")
    kv = encode(tensors, {**config, "_name_or_path": "some/where/toy"}).metadata["gguf"]["kv"]
    assert next(iter(kv)) == "general.architecture"
    assert kv["general.name"] == ("string", "toy")
    assert kv["general.file_type"] == ("uint32", gguf.LlamaFileType.MOSTLY_MXFP4_MOE)
    assert kv["general.quantization_version"] == ("uint32", gguf.GGML_QUANT_VERSION)
    assert kv["tokenizer.ggml.model"] == ("string", "none")
    assert kv["gpt-oss.vocab_size"] == ("uint32", config["vocab_size"]), "where llama.cpp cannot count tokens"
    plain = encode(toy_llama.weights(), toy_llama.CONFIG).metadata["gguf"]["kv"]
    assert plain["general.file_type"] == ("uint32", gguf.LlamaFileType.MOSTLY_BF16)
    assert "general.quantization_version" not in plain
    json.dumps(kv)


@pytest.mark.parametrize("chunk_nbytes", [4096, 1 << 20])
def test_what_was_written_is_recognized_when_resuming(chunk_nbytes, tmp_path):
    """Export's digest of a chunk that lies in the file is the digest that writing it gave."""
    from pipeline.stage import Checkpoint, Context
    from plugins.formats.gguf.file import GgufContainer as Container
    from stages.export import Export

    tensors, config = gpt_oss("mxfp4")
    stage = Export(GgufDialect(), Container(), DEQUANTIZE, CAST, path=str(tmp_path / "out"))
    work = stage.run(Context(tmp_path, chunk_nbytes=chunk_nbytes), Checkpoint(MemoryStore(tensors), config))
    work.begin(fresh=True)
    done = [work.do(c) for c in work.chunks]
    assert [work.digest(c) for c in work.chunks] == done

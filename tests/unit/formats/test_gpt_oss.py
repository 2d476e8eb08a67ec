"""The gpt-oss and plain dialects: every tensor of the toy, round trips bit for bit, and every refusal."""

import json
import pickle
from typing import Any

import numpy as np
import pytest

from pipeline.errors import PlanError
from pipeline.tensors.binding import Binding
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.views import JoinedStore
from plugins.facts.rope import parameters
from plugins.formats.gpt_oss.config import from_original, sizes_of, to_original
from plugins.formats.gpt_oss.dialect import GptOss, Original
from plugins.formats.gpt_oss.table import entries
from plugins.formats.safetensors.plain import Plain
from tests.cases import toy_gpt_oss as toys
from tests.cases.memory_store import MemoryStore, box_of, same, spec_of, write_all

HF, ORIGINAL, PLAIN = GptOss(), Original(), Plain()
DIALECTS: dict[Any, Any] = {"hf": HF, "original": ORIGINAL}
GATE_UP = "model.layers.1.mlp.experts.gate_up_proj"
DOWN = "model.layers.1.mlp.experts.down_proj"


def specs_of(leaves: dict[str, np.ndarray]) -> dict[str, TensorSpec]:
    return {name: spec_of(a) for name, a in leaves.items()}


def join(dialect: Any, leaves: dict[str, np.ndarray], config: dict[str, Any]) -> JoinedStore:
    return JoinedStore(MemoryStore(leaves), dialect.decode(specs_of(leaves), config))


def expected(toy: toys.Toy) -> dict[str, Any]:
    return {n: QTensor(v[0], v[1], MXFP4) if isinstance(v, tuple) else v for n, v in toy.logical.items()}


def as_source(binding: Binding) -> dict[str, Any]:
    """The config a loader would hand to `decode` for a folder that was written from `binding`."""
    return {**binding.config, **{n: json.loads(b) for n, b in binding.files.items() if n in Original.companions}}


def problems_of(call: Any, *args: Any) -> dict[str, str]:
    with pytest.raises(PlanError) as e:
        call(*args)
    problems: dict[str, list[str]] = {}
    for p in e.value.problems:
        problems.setdefault(p.where, []).append(p.message)
    return {where: " & ".join(messages) for where, messages in problems.items()}


@pytest.fixture(scope="module", params=["bf16", "mxfp4", "mixed"])
def experts(request: pytest.FixtureRequest) -> dict[str, Any]:
    mxfp4 = {"experts": "mxfp4"}
    kinds: dict[str, dict[str, Any]] = {"bf16": {}, "mxfp4": mxfp4, "mixed": {**mxfp4, "plain_layers": (1,)}}
    return kinds[request.param]


@pytest.mark.parametrize("naming", DIALECTS)
def test_every_tensor_comes_out_right(naming: toys.Naming, experts: dict[str, Any]) -> None:
    toy = toys.make(naming, **experts)
    store = join(DIALECTS[naming], toy.leaves, toy.config)
    want = expected(toy)
    assert set(store.specs) == set(want)
    for name, value in want.items():
        assert store.specs[name] == spec_of(value), name
        assert same(store.read(name), value), name


@pytest.mark.parametrize("naming", DIALECTS)
def test_boxes_of_experts(naming: toys.Naming, experts: dict[str, Any]) -> None:
    toy = toys.make(naming, **experts)
    store = join(DIALECTS[naming], toy.leaves, toy.config)
    for name in (GATE_UP, DOWN, f"{GATE_UP}_bias", "model.layers.2.self_attn.v_proj.weight"):
        for box in [(slice(1, 3),), (slice(4, 5), slice(7, 60)), (slice(0, 2), slice(3, 4), slice(32, 128))]:
            cut = box[: len(store.specs[name].shape)]
            assert same(store.read(name, cut), box_of(expected(toy)[name], cut))


def test_logical_order_is_the_models_and_bindings_pickle() -> None:
    toy = toys.make()
    binding = HF.decode(specs_of(dict(sorted(toy.leaves.items()))), toy.config)
    assert next(iter(binding.tensors)) == "model.embed_tokens.weight"
    assert list(binding.tensors)[-2:] == ["model.norm.weight", "lm_head.weight"]
    assert pickle.loads(pickle.dumps(binding)) == binding
    assert binding.leaves.keys() == toy.leaves.keys()


def test_both_namings_give_one_logical_model(experts: dict[str, Any]) -> None:
    a, b = toys.make("hf", **experts), toys.make("original", **experts)
    hf, original = join(HF, a.leaves, a.config), join(ORIGINAL, b.leaves, b.config)
    assert hf.specs == original.specs
    assert all(same(hf.read(n), original.read(n)) for n in hf.specs)


@pytest.mark.parametrize("naming", DIALECTS)
def test_encode_writes_the_leaves_of_the_toy(naming: toys.Naming, experts: dict[str, Any]) -> None:
    toy, other = toys.make(naming, **experts), toys.make("hf", **experts)
    store = join(HF, other.leaves, other.config)
    binding = DIALECTS[naming].encode(store.specs, store.binding.config)
    written = write_all(binding, store.read)
    assert written.keys() == toy.leaves.keys()
    assert all(same(written[n], toy.leaves[n]) for n in written)
    assert specs_of(written) == dict(binding.leaves)
    assert binding.config == toy.config


@pytest.mark.parametrize("v4", [False, True])
def test_hf_original_hf_is_the_identity(experts: dict[str, Any], v4: bool) -> None:
    toy = toys.make("hf", **experts, v4=v4)
    toy.config["pad_token_id"] = 7  # a key the original config has no place for
    first = join(HF, toy.leaves, toy.config)
    there = ORIGINAL.encode(first.specs, first.binding.config)
    assert set(there.config) == set(toys.ORIGINAL_CONFIG)
    second = join(ORIGINAL, write_all(there, first.read), as_source(there))
    assert second.binding.config == first.binding.config
    back = HF.encode(second.specs, second.binding.config)
    assert dict(back.config) == toy.config
    written = write_all(back, second.read)
    assert written.keys() == toy.leaves.keys()
    assert all(same(written[n], toy.leaves[n]) for n in written)


def test_original_hf_original_is_the_identity(experts: dict[str, Any]) -> None:
    toy = toys.make("original", **experts)
    first = join(ORIGINAL, toy.leaves, toy.config)
    there = HF.encode(first.specs, first.binding.config)
    assert {"hf_config.json", "dtypes.json"} <= set(there.drop)
    second = join(HF, write_all(there, first.read), dict(there.config))
    back = ORIGINAL.encode(second.specs, second.binding.config)
    assert dict(back.config) == toy.config
    written = write_all(back, second.read)
    assert written.keys() == toy.leaves.keys()
    assert all(same(written[n], toy.leaves[n]) for n in written)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize(
    ("layers", "experts", "hf_leaves", "nbytes"), [(24, 32, 459, 13_761_264_768), (36, 128, 687, 65_248_815_744)]
)
def test_the_published_checkpoints_have_our_counts(
    dialect: Any, layers: int, experts: int, hf_leaves: int, nbytes: int
) -> None:
    """gpt-oss-20b and -120b: number of tensors in the Hugging Face form, data bytes in both."""
    ours = {**toys.ORIGINAL_CONFIG, "num_hidden_layers": layers, "num_experts": experts, "vocab_size": 201088}
    ours |= {"hidden_size": 2880, "intermediate_size": 2880, "head_dim": 64}
    ours |= {"num_attention_heads": 64, "num_key_value_heads": 8}
    config = from_original(ours, 99)
    specs = {e.logical: TensorSpec(e.shape, "BF16", MXFP4 if e.packs else None) for e in entries(sizes_of(config, 99))}
    leaves = dialect.encode(specs, config).leaves
    assert sum(s.nbytes for s in leaves.values()) == nbytes
    # q, k and v are one leaf in the original naming: two weights and two biases less a layer.
    assert len(leaves) == hf_leaves - (4 * layers if dialect is ORIGINAL else 0)


def test_dtypes_json_speaks_the_published_words() -> None:
    toy = toys.make("original", experts="mxfp4")
    store = join(ORIGINAL, toy.leaves, toy.config)
    words = json.loads(ORIGINAL.encode(store.specs, store.binding.config).files["dtypes.json"])
    assert words.keys() == toy.leaves.keys()
    assert words["block.2.mlp.mlp1_weight.blocks"] == "FP4"
    assert words["block.2.mlp.mlp1_weight.scales"] == "UE8"
    assert words["block.2.attn.norm.scale"] == "BF16"


def test_recognition() -> None:
    hf, original = toys.make("hf"), toys.make("original")
    hf_leaves, original_leaves = specs_of(hf.leaves), specs_of(original.leaves)
    assert HF.recognizes(hf_leaves, hf.config)
    assert not HF.recognizes(hf_leaves, {**hf.config, "model_type": "llama"})
    assert not HF.recognizes(hf_leaves, {})
    assert not HF.recognizes(original_leaves, original.config)
    assert ORIGINAL.recognizes(original_leaves, original.config)
    assert not ORIGINAL.recognizes(original_leaves, {"model_type": "gpt2"})
    assert not ORIGINAL.recognizes(hf_leaves, hf.config)
    # Canonical tensors (written by Plain) carry the same names in the other orientation.
    assert not HF.recognizes({n: spec_of(v) for n, v in hf.logical.items()}, hf.config)
    assert PLAIN.recognizes(hf_leaves, {})
    # Original names beside a Hugging Face config: both dialects can tell.
    assert not HF.recognizes(original_leaves, hf.config)
    assert ORIGINAL.recognizes(original_leaves, hf.config)
    assert ORIGINAL.decode(original_leaves, hf.config).config == hf.config


def test_decode_reports_everything_at_once() -> None:
    toy = toys.make(experts="mxfp4")
    leaves = specs_of(toy.leaves)
    del leaves["model.layers.0.self_attn.sinks"], leaves[f"{DOWN}_scales"]
    leaves["model.layers.0.self_attn.sink"] = TensorSpec((6,), "BF16")
    leaves["model.norm.weight"] = TensorSpec((129,), "BF16")
    leaves["model.layers.2.mlp.router.weight"] = TensorSpec((128, 5), "F64")
    leaves[f"{GATE_UP}_blocks"] = TensorSpec((5, 448, 4, 16), "I8")
    found = problems_of(HF.decode, leaves, toy.config)
    assert found["model.layers.0.self_attn.sinks"] == "missing; expected BF16 [6]"
    assert found[f"{DOWN}_scales"] == "missing; expected U8 [5, 128, 7]"
    assert "did you mean 'model.layers.0.self_attn.sinks'" in found["model.layers.0.self_attn.sink"]
    assert found["model.norm.weight"] == "has shape [129], config.json asks for [128]"
    assert "has shape [128, 5], config.json asks for [5, 128]" in found["model.layers.2.mlp.router.weight"]
    assert "F64 (allowed: BF16, F16, F32)" in found["model.layers.2.mlp.router.weight"]
    assert found[f"{GATE_UP}_blocks"] == "has dtype I8 (allowed: U8)"
    assert len(found) == 6


def test_decode_refuses_a_tensor_stored_twice() -> None:
    toy = toys.make(experts="mxfp4")
    leaves = {**specs_of(toy.leaves), GATE_UP: TensorSpec((5, 128, 448), "BF16")}
    assert f"plain and as {GATE_UP}_blocks" in problems_of(HF.decode, leaves, toy.config)[GATE_UP]


@pytest.mark.parametrize("naming", DIALECTS)
def test_a_surplus_of_layers_is_one_problem(naming: toys.Naming) -> None:
    toy = toys.make(naming)
    found = problems_of(DIALECTS[naming].decode, specs_of(toy.leaves), {**toy.config, "num_hidden_layers": 2})
    assert list(found) == ["config.json"]
    assert "num_hidden_layers is 2" in found["config.json"]


def test_a_transposed_checkpoint_is_refused() -> None:
    toy = toys.make()
    leaves = {n: spec_of(v) for n, v in toy.logical.items()}
    found = problems_of(HF.decode, leaves, toy.config)
    assert found[GATE_UP] == "has shape [5, 448, 128], config.json asks for [5, 128, 448]"


def test_config_numbers_must_be_there() -> None:
    toy = toys.make()
    config = {("head_dims" if k == "head_dim" else k): v for k, v in toy.config.items()}
    config |= {"vocab_size": "259", "hidden_size": True}
    with pytest.raises(PlanError) as e:
        HF.decode(specs_of(toy.leaves), config)
    assert [str(p) for p in e.value.problems] == [
        "config.json: hidden_size is True; a positive integer is needed",
        "config.json: head_dim is missing (the nearest key is 'head_dims'); a positive integer is needed",
        "config.json: vocab_size is '259'; a positive integer is needed",
    ]
    assert "multiple of" in problems_of(HF.decode, {}, {**toy.config, "num_key_value_heads": 4})["config.json"]


def test_tied_embeddings() -> None:
    toy = toys.make()
    config = {**toy.config, "tie_word_embeddings": True}
    store = join(HF, toy.leaves, config)
    assert "lm_head.weight" not in store.specs
    assert "tie_word_embeddings" in store.binding.ignored["lm_head.weight"]
    assert "lm_head.weight" not in HF.encode(store.specs, config).leaves
    # The original naming has no way to tie: it stores the table twice, and reading finds one tensor again.
    there = ORIGINAL.encode(store.specs, store.binding.config)
    leaves = write_all(there, store.read)
    assert same(leaves["unembedding.weight"], leaves["embedding.weight"])
    assert join(ORIGINAL, leaves, as_source(there)).specs == store.specs


def test_attention_without_bias() -> None:
    toy = toys.make()
    config = {**toy.config, "attention_bias": False}
    leaves = {n: a for n, a in toy.leaves.items() if not ("self_attn" in n and n.endswith("bias"))}
    store = join(HF, leaves, config)
    assert HF.encode(store.specs, config).leaves.keys() == leaves.keys()
    assert "attention_bias is False" in problems_of(ORIGINAL.encode, store.specs, config)["config.json"]
    assert "model.layers.0.self_attn.o_proj.bias" in problems_of(HF.decode, specs_of(toy.leaves), config)


def test_known_leftovers_are_ignored_with_a_reason() -> None:
    toy = toys.make()
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    binding = HF.decode({**specs_of(toy.leaves), name: TensorSpec((12,), "F32")}, toy.config)
    assert set(binding.ignored) == {name}


@pytest.mark.parametrize("naming", DIALECTS)
def test_encode_refuses_what_it_cannot_express(naming: toys.Naming) -> None:
    toy = toys.make()
    specs = {n: spec_of(v) for n, v in toy.logical.items()}
    specs[GATE_UP] = TensorSpec((5, 448, 128), "BF16", Scheme("e2m1", 16, "e8m0"))
    specs["model.layers.0.self_attn.q_proj.weight"] = TensorSpec((144, 128), "BF16", MXFP4)
    specs["model.layers.0.mlp.router.weight"] = TensorSpec((128, 5), "BF16")
    specs["model.norm.weight"] = TensorSpec((128,), "I32")
    specs["model.layers.0.self_attn.qkv.weight"] = TensorSpec((240, 128), "BF16")
    del specs["model.embed_tokens.weight"]
    found = problems_of(DIALECTS[naming].encode, specs, toy.config)
    assert "knows no packing but MXFP4 (e2m1/32/e8m0)" in found.pop(GATE_UP)
    assert "is quantized (e2m1/32/e8m0)" in found.pop("model.layers.0.self_attn.q_proj.weight")
    assert "config.json asks for [5, 128] (experts × hidden)" in found.pop("model.layers.0.mlp.router.weight")
    assert "allowed: BF16, F16, F32" in found.pop("model.norm.weight")
    assert "no such tensor; did you mean" in found.pop("model.layers.0.self_attn.qkv.weight")
    assert "missing" in found.pop("model.embed_tokens.weight")
    assert set(found) <= {DOWN, GATE_UP}


def test_hf_packs_both_matrices_of_a_layer_or_neither() -> None:
    toy = toys.make()
    specs = {n: spec_of(v) for n, v in toy.logical.items()}
    specs[GATE_UP] = TensorSpec((5, 448, 128), "BF16", MXFP4)
    assert f"{DOWN} is not" in problems_of(HF.encode, specs, toy.config)[GATE_UP]
    assert ORIGINAL.encode(specs, toy.config).leaves["block.1.mlp.mlp2_weight"] == TensorSpec((5, 128, 224), "BF16")


def test_blocks_must_fit() -> None:
    toy = toys.make(experts="mxfp4")
    config = {**toy.config, "intermediate_size": 220}
    found = problems_of(HF.decode, specs_of(toy.leaves), config)
    assert "not a multiple of the block of 32" in found[f"{DOWN}_blocks"]
    assert DOWN not in found


def test_another_quantization_is_named() -> None:
    toy = toys.make()
    config = {**toy.config, "quantization_config": {"quant_method": "fp8"}}
    assert "quant_method 'fp8'" in problems_of(HF.decode, specs_of(toy.leaves), config)["config.json"]


def test_fused_rows_need_one_dtype() -> None:
    toy = toys.make()
    specs = {n: spec_of(v) for n, v in toy.logical.items()}
    name = "model.layers.0.self_attn.k_proj.weight"
    specs[name] = TensorSpec(specs[name].shape, "F32")
    assert "cannot share block.0.attn.qkv.weight" in problems_of(ORIGINAL.encode, specs, toy.config)[name]
    assert HF.encode(specs, toy.config).config["dtype"] == "bfloat16"


def test_dtype_of_the_config_follows_the_tensors() -> None:
    toy = toys.make()
    specs = {n: TensorSpec(v.shape, "F32") for n, v in toy.logical.items()}
    assert HF.encode(specs, toy.config).config["dtype"] == "float32"
    old = {k: v for k, v in toy.config.items() if k != "dtype"} | {"torch_dtype": "bfloat16"}
    assert HF.encode(specs, old).config["torch_dtype"] == "float32"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rms_norm_eps": 1e-6}, "rms_norm_eps is 1e-06"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types"),
        ({"rope_parameters": None}, "no rope_parameters"),
        ({"rope_parameters": {**toys.ROPE_V5["rope_parameters"], "rope_type": "llama3"}}, "rope_type is 'llama3'"),
        ({"rope_parameters": {**toys.ROPE_V5["rope_parameters"], "truncate": True}}, "rope truncate is True"),
        ({"sliding_window": None}, "sliding_window is None"),
    ],
)
def test_a_config_that_the_original_program_cannot_follow_is_refused(change: dict[str, Any], says: str) -> None:
    toy = toys.make()
    specs = {n: spec_of(v) for n, v in toy.logical.items()}
    assert says in problems_of(ORIGINAL.encode, specs, {**toy.config, **change})["config.json"]


def test_configs_in_three_spellings_are_one() -> None:
    v4, v5 = toys.make(v4=True).config, toys.make().config
    assert parameters(v4) == parameters(v5)
    assert to_original(v4) == to_original(v5) == (toys.ORIGINAL_CONFIG, [])
    assert to_original(from_original(toys.ORIGINAL_CONFIG, 99)) == (toys.ORIGINAL_CONFIG, [])
    silent = {k: v for k, v in v4.items() if k != "rope_scaling"}  # of the scaling, which is then that of gpt-oss
    assert to_original(silent)[0] == {
        **toys.ORIGINAL_CONFIG, "rope_scaling_factor": 32.0, "rope_ntk_beta": 32.0, "initial_context_length": 4096
    }  # fmt: skip
    unscaled = {**toys.ORIGINAL_CONFIG, "rope_scaling_factor": 1.0}
    assert to_original(from_original(unscaled, 99))[0]["rope_scaling_factor"] == 1.0


def test_original_config_keys_are_checked() -> None:
    with pytest.raises(
        PlanError, match=r"num_experts is missing[^§]*'num_expert' is unknown[^§]*did you mean 'num_experts'"
    ):
        from_original({("num_expert" if k == "num_experts" else k): v for k, v in toys.ORIGINAL_CONFIG.items()}, 99)


def test_a_companion_that_disagrees_is_refused() -> None:
    toy, hf = toys.make("original"), toys.make("hf")
    config = {**toy.config, "hf_config.json": {**hf.config, "sliding_window": 9}}
    found = problems_of(ORIGINAL.decode, specs_of(toy.leaves), config)
    assert "says sliding_window 9, config.json says 8" in found["hf_config.json"]


def test_plain_keeps_names_and_takes_no_packed_leaves_for_values() -> None:
    toy = toys.make(experts="mxfp4")
    with pytest.raises(PlanError, match="quant_method 'mxfp4', which is not read"):
        PLAIN.decode(specs_of(toy.leaves), toy.config)
    config = {k: v for k, v in toy.config.items() if k != "quantization_config"}
    binding = PLAIN.decode(specs_of(toy.leaves), config)
    assert {n: b.spec for n, b in binding.tensors.items()} == specs_of(toy.leaves)
    assert dict(binding.config) == config
    store = JoinedStore(MemoryStore(toy.leaves), binding)
    assert all(same(store.read(n), a) for n, a in toy.leaves.items())


def test_plain_writes_what_the_names_mean() -> None:
    toy = toys.make()
    first = join(HF, toy.leaves, toy.config)
    there = PLAIN.encode(first.specs, first.binding.config)
    leaves = write_all(there, first.read)
    assert leaves.keys() == toy.leaves.keys()
    assert all(same(a, toy.leaves[n]) for n, a in leaves.items())
    assert HF.recognizes(specs_of(leaves), there.config)
    for dialect in (HF, PLAIN):
        again = join(dialect, leaves, dict(there.config))
        assert again.specs == first.specs
        assert all(same(again.read(n), first.read(n)) for n in first.specs)


@pytest.mark.parametrize(("hidden", "inter"), [(96, 64), (64, 64), (128, 64), (64, 128)])
def test_plain_exports_from_before_stacks_were_turned_are_told_by_their_shapes(
    monkeypatch: pytest.MonkeyPatch, hidden: int, inter: int
) -> None:
    """They had [E, out, in] under Hugging Face's names. One of both matrices always tells, square or not the other."""
    monkeypatch.setattr(toys, "HIDDEN", hidden)
    monkeypatch.setattr(toys, "INTER", inter)
    toy = toys.make()
    config = {**toy.config, "hidden_size": hidden, "intermediate_size": inter}
    older = dict(toy.logical)
    assert not HF.recognizes(specs_of(older), config)
    assert HF.recognizes(specs_of(toy.leaves), config)
    for leaves, dialect in ((older, PLAIN), (toy.leaves, PLAIN), (toy.leaves, HF)):
        store = join(dialect, leaves, config)
        assert all(same(store.read(n), a) for n, a in toy.logical.items())


def test_plain_refuses_schemes() -> None:
    found = problems_of(PLAIN.encode, {"a": TensorSpec((2, 32), "BF16", MXFP4), "b": TensorSpec((2,), "F32")}, {})
    assert list(found) == ["a"]
    assert "dequantize it before exporting" in found["a"]

"""The compressed-tensors dialect: round trips of every format, what it refuses, and the library's own view of it."""

import json
import pickle
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import PlanError
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.testing.memory import cut, random_boxes, same, spec_of
from plugins.formats.bitsandbytes.dialect import BitsAndBytes
from plugins.formats.common.packings import Words, WordsDown, offset_binary
from plugins.formats.compressed_tensors.config import patterns
from plugins.formats.compressed_tensors.dialect import CompressedTensors
from plugins.formats.compressed_tensors.schemes import MXFP6, MXFP8, NVFP4
from plugins.formats.modelopt.dialect import ModelOpt
from tests.cases.quantized import leaves_of, quantized, read, seen_by

CT = CompressedTensors()
ONE_BYTE = CompressedTensors(int8="int-quantized")
CASES: dict[str, tuple[CompressedTensors, Scheme, str]] = {
    "mxfp4": (CT, MXFP4, "mxfp4-pack-quantized"),
    "nvfp4": (CT, NVFP4, "nvfp4-pack-quantized"),
    "mxfp6": (CT, MXFP6, "mxfp6-pack-quantized"),
    "mxfp8": (CT, MXFP8, "mxfp8-quantized"),
    "int4-group": (CT, Scheme("int4", 32, "bf16"), "pack-quantized"),
    "int4-channel": (CT, Scheme("int4", 0, "f16"), "pack-quantized"),
    "int4-tensor": (CT, Scheme("int4", 0, "f32", block_rows=0), "pack-quantized"),
    "uint4-group": (CT, Scheme("uint4", 32, "bf16", zero="int"), "pack-quantized"),
    "uint4-channel": (CT, Scheme("uint4", 0, "bf16", zero="int"), "pack-quantized"),
    "int3-group": (CT, Scheme("int3", 32, "bf16"), "pack-quantized"),
    "uint3-group": (CT, Scheme("uint3", 32, "bf16", zero="int"), "pack-quantized"),
    "uint2-group": (CT, Scheme("uint2", 32, "bf16", zero="int"), "pack-quantized"),
    "int8-group-packed": (CT, Scheme("int8", 32, "bf16"), "pack-quantized"),
    "uint8-packed": (CT, Scheme("uint8", 32, "bf16", zero="int"), "pack-quantized"),
    "int8-channel": (ONE_BYTE, Scheme("int8", 0, "bf16"), "int-quantized"),
    "uint8-channel": (ONE_BYTE, Scheme("uint8", 0, "bf16", zero="int"), "int-quantized"),
    "int8-tensor": (ONE_BYTE, Scheme("int8", 0, "f32", block_rows=0), "int-quantized"),
    "fp8-tensor": (CT, Scheme("e4m3", 0, "f32", block_rows=0), "float-quantized"),
    "fp8-channel": (CT, Scheme("e4m3", 0, "bf16"), "float-quantized"),
    "fp8-group": (CT, Scheme("e4m3", 32, "bf16"), "float-quantized"),
    "fp8-block": (CT, Scheme("e4m3", 32, "bf16", block_rows=16), "float-quantized"),
}
CONFIG = {"model_type": "gpt_oss", "dtype": "bfloat16", "hidden_size": 96}
Q, DOWN, LAYER = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj", "model.layers.{}.mlp.experts"


def plain(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(ml_dtypes.bfloat16)


def apart(scheme: Scheme) -> bool:
    """Whether gate and up rows can be stored apart."""
    return scheme.block_rows < 2


def model(scheme: Scheme) -> dict[str, Any]:
    """Two layers with a matrix, its bias and a stack of experts each (gate and up, if it can be); the rest plain."""
    tensors: dict[str, Any] = {"model.embed_tokens.weight": plain(37, 96)}
    for n in range(2):
        tensors[f"model.layers.{n}.self_attn.q_proj.weight"] = quantized(scheme, (56, 96), n)
        tensors[f"model.layers.{n}.self_attn.q_proj.bias"] = plain(56)
        tensors[f"model.layers.{n}.input_layernorm.weight"] = plain(96)
        gate_up, down = quantized(scheme, (3, 40, 96), 10 + n), plain(3, 96, 20)
        if not apart(scheme):
            gate_up, down = plain(3, 40, 96), quantized(scheme, (3, 96, 64), 10 + n)
        tensors[f"{LAYER.format(n)}.gate_up_proj"] = gate_up
        tensors[f"{LAYER.format(n)}.gate_up_proj_bias"] = plain(3, 40)
        tensors[f"{LAYER.format(n)}.down_proj"] = down
        tensors[f"{LAYER.format(n)}.down_proj_bias"] = plain(3, 96)
    tensors["lm_head.weight"] = plain(37, 96, seed=2)
    return tensors


def specs_of(tensors: dict[str, Any]) -> dict[str, TensorSpec]:
    return {n: spec_of(v) for n, v in tensors.items()}


def problems_of(call: Any, *args: Any) -> dict[str, str]:
    with pytest.raises(PlanError) as e:
        call(*args)
    found: dict[str, list[str]] = {}
    for p in e.value.problems:
        found.setdefault(p.where, []).append(p.message)
    return {where: " & ".join(messages) for where, messages in found.items()}


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_is_read_again(case: str) -> None:
    dialect, scheme, fmt = CASES[case]
    tensors = model(scheme)
    there = dialect.encode(specs_of(tensors), CONFIG)
    assert there.config["quantization_config"]["format"] == fmt
    leaves = leaves_of(there, tensors)
    assert dialect.recognizes(there.leaves, there.config)
    store = read(dialect, leaves, there.config)
    assert dict(store.specs) == specs_of(tensors)
    assert list(store.specs) == list(tensors)
    assert all(same(store.read(n), v) for n, v in tensors.items())
    assert store.binding.config == CONFIG
    assert not store.binding.ignored
    assert dict(store.binding.leaves) == dict(there.leaves)
    again = dialect.encode(store.specs, store.binding.config)
    assert again == there
    assert pickle.loads(pickle.dumps(again)) == there
    json.dumps(dict(again.config))


@pytest.mark.parametrize("case", CASES)
def test_boxes(case: str) -> None:
    dialect, scheme, _ = CASES[case]
    tensors = {
        f"{Q}.weight": quantized(scheme, (64, 128)),
        f"{LAYER.format(3)}.{'gate_up' if apart(scheme) else 'down'}_proj": quantized(scheme, (3, 32, 128)),
    }
    there = dialect.encode(specs_of(tensors), CONFIG)
    store = read(dialect, leaves_of(there, tensors), there.config)
    rng = np.random.default_rng(0)
    for name, value in tensors.items():
        for box in random_boxes(store.specs[name], rng):
            assert same(store.read(name, box), cut(value, box)), (name, box)


@given(st.data())
@settings(max_examples=60)
def test_any_shape(data: st.DataObject) -> None:
    dialect, scheme, _ = CASES[data.draw(st.sampled_from(sorted(CASES)))]
    if scheme.block_elems and scheme.scale in ("bf16", "f16", "f32"):
        scheme = replace(scheme, block_elems=data.draw(st.sampled_from([8, 16, 24, 64])))
    unit = scheme.block_elems or 8
    shape = (data.draw(st.integers(1, 40)), unit * data.draw(st.integers(1, 5)))
    stack = data.draw(st.integers(0, 4))
    turns = stack and apart(scheme) and shape[0] % 2 == 0
    name = f"{LAYER.format(7)}.{'gate_up' if turns else 'down'}_proj" if stack else f"{DOWN}.weight"
    tensors = {name: quantized(scheme, (stack, *shape) if stack else shape, data.draw(st.integers(0, 99)))}
    there = dialect.encode(specs_of(tensors), CONFIG)
    store = read(dialect, leaves_of(there, tensors), there.config)
    assert dict(store.specs) == specs_of(tensors)
    assert same(store.read(name), tensors[name])


def test_names_of_leaves() -> None:
    there = CT.encode(specs_of(model(NVFP4)), CONFIG)
    one = {n.removeprefix(f"{Q}."): (s.dtype, s.shape) for n, s in there.leaves.items() if n.startswith(f"{Q}.")}
    assert one == {
        "weight_packed": ("U8", (56, 48)),
        "weight_scale": ("F8_E4M3", (56, 6)),
        "weight_global_scale": ("F32", (1,)),
        "bias": ("BF16", (56,)),
    }
    experts = {n.split(".experts.")[1] for n in there.leaves if n.startswith("model.layers.1.mlp.experts.")}
    assert len(experts) == 3 * (2 * (3 + 1) + 2)
    assert {"2.gate_proj.weight_global_scale", "0.up_proj.bias", "1.down_proj.weight"} <= experts
    assert there.leaves["model.layers.1.mlp.experts.2.up_proj.weight_packed"] == TensorSpec((20, 48), "U8")
    packed = CT.encode(specs_of(model(CASES["uint4-group"][1])), CONFIG).leaves
    one = {n.removeprefix(f"{Q}."): (s.dtype, s.shape) for n, s in packed.items() if n.startswith(f"{Q}.weight")}
    assert one == {
        "weight_packed": ("I32", (56, 12)),
        "weight_scale": ("BF16", (56, 3)),
        "weight_zero_point": ("I32", (7, 3)),
        "weight_shape": ("I64", (2,)),
    }


def test_int4_bytes_by_hand() -> None:
    """Elements 0…7 of a row are -8 … -1, then 7, 0: offset binary 0…7, 15, 8; the first in the lowest nibble."""
    values = [-8, -7, -6, -5, -4, -3, -2, -1, 7, 0]
    codes = np.array([[(a & 15) | (b & 15) << 4 for a, b in zip(values[::2], values[1::2], strict=True)]], np.uint8)
    packing = Words(4, 5, signed=True)
    words = packing.pack(codes)
    assert words.tolist() == [[0x76543210, 0x8F]]
    assert same(packing.unpack(words), codes)


def test_three_bits_by_hand() -> None:
    """-4, -3, … +3 are 0…7 in offset binary: eight elements are one 24-bit number."""
    stream = sum((v & 7) << 3 * i for i, v in enumerate(range(-4, 4)))
    codes = np.frombuffer(stream.to_bytes(3, "little"), np.uint8)[None]
    want = sum(i << 3 * i for i in range(8))
    assert int.from_bytes(offset_binary(codes, 3).tobytes(), "little") == want
    assert Words(3, 3, signed=True).pack(codes).tolist() == [[want]]


def test_zero_points_go_down_the_rows() -> None:
    zeros = np.arange(10, dtype=np.uint8)[:, None] % 16
    words = WordsDown(4, 10).pack(zeros)
    assert words.tolist() == [[0x76543210], [0x98]]
    assert same(WordsDown(4, 10).unpack(words), zeros)


def test_mixed_schemes_are_config_groups() -> None:
    tensors: dict[str, Any] = {"proj.weight": quantized(MXFP8, (37, 96))}
    for n in range(3):
        for name, scheme in {"q_proj": CASES["int4-group"][1], "k_proj": NVFP4, "v_proj": None}.items():
            value = plain(8, 96) if scheme is None else quantized(scheme, (8, 96), n)
            tensors[f"model.layers.{n}.self_attn.{name}.weight"] = value
    tensors["model.layers.1.mlp.up_proj.weight"] = quantized(CASES["int4-group"][1], (24, 96))
    tensors["lm_head.weight"] = quantized(CASES["fp8-block"][1], (37, 96))
    there = CT.encode(specs_of(tensors), CONFIG)
    quant = there.config["quantization_config"]
    assert quant["format"] == "mixed-precision"
    targets = {g["format"]: g["targets"] for g in quant["config_groups"].values()}
    assert targets == {
        "pack-quantized": ["Linear"],
        "nvfp4-pack-quantized": ["re:model\\.layers\\.[0-9]+\\.self_attn\\.k_proj$"],
        "mxfp8-quantized": ["proj"],
        "float-quantized": ["lm_head"],
    }
    *_, last = quant["config_groups"].values()  # of targets that a module has, compressed-tensors takes the first
    assert last["targets"] == ["Linear"]
    assert [*quant["config_groups"]] == ["group_0", "group_1", "group_2", "group_3"]
    assert quant["ignore"] == ["re:model\\.layers\\.[0-9]+\\.self_attn\\.v_proj$"]
    assert not there.notes
    store = read(CT, leaves_of(there, tensors), there.config)
    assert dict(store.specs) == specs_of(tensors)
    assert all(same(store.read(n), v) for n, v in tensors.items())


@pytest.mark.parametrize("module", ["model.embed_tokens", "model.layers.0.mlp.router", "model.layers.0.mlp.gate"])
@pytest.mark.parametrize("dialect", [CT, BitsAndBytes(), ModelOpt()])
def test_what_no_reader_loads_packed_is_refused(module: str, dialect: Any) -> None:
    """With a rule to paste, whatever the scheme. What somebody else has packed so is read all the same."""
    with pytest.raises(PlanError, match=rf"no linear module: .*--rule {module}.weight=none, or 'model.extra_rules="):
        dialect.encode(specs_of({f"{module}.weight": quantized(MXFP8, (8, 96))}), CONFIG)


def test_a_tied_head_is_ignored() -> None:
    tensors = {f"{Q}.weight": quantized(MXFP4, (8, 96))}
    assert CT.encode(specs_of(tensors), CONFIG).config["quantization_config"]["ignore"] == ["lm_head"]


def test_patterns_match_nothing_else() -> None:
    names = ["a.0.q", "a.1.q", "a.1.k", "a.2.q", "b.0.x.1.y", "b.0.x.2.y"]
    assert patterns(["a.0.q", "a.1.q", "a.2.q"], names) == ["re:a\\.[0-9]+\\.q$"]
    assert patterns(["a.0.q", "a.2.q", "b.0.x.2.y", "b.0.x.1.y"], names) == [
        "a.0.q",
        "a.2.q",
        "re:b\\.[0-9]+\\.x\\.[0-9]+\\.y$",
    ]


def test_a_checkpoint_without_quantized_tensors_is_refused() -> None:
    found = problems_of(CT.encode, {"model.norm.weight": TensorSpec((96,), "BF16")}, CONFIG)
    assert "no tensor is quantized" in found["export.dialect"]


def test_what_describes_activations_is_left_out_by_name() -> None:
    tensors = {f"{Q}.weight": quantized(NVFP4, (8, 96))}
    there = CT.encode(specs_of(tensors), CONFIG)
    more = {f"{Q}.input_global_scale": np.ones(1, np.float32), f"{Q}.k_scale": np.ones(1, np.float32)}
    binding = read(CT, {**leaves_of(there, tensors), **more}, there.config).binding
    assert set(binding.ignored) == set(more)


@pytest.mark.parametrize(
    ("args", "option"),
    [
        ({"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}, "int8"),
        ({"num_bits": 8, "type": "float", "dynamic": True, "strategy": "token"}, "fp8_e4m3"),
        ({"num_bits": 8, "type": "float", "dynamic": True, "strategy": "group", "group_size": 32}, "mxfp8_e4m3"),
        ({"num_bits": 8, "type": "float", "dynamic": False, "strategy": "tensor"}, None),
    ],
)
def test_inputs_that_readers_round_by_scales_of_their_own_are_said(args: dict[str, Any], option: str | None) -> None:
    tensors = {f"{Q}.weight": quantized(CASES["int4-group"][1], (8, 96))}
    there = CT.encode(specs_of(tensors), CONFIG)
    config = json.loads(json.dumps(there.config))
    config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = args
    found = read(CT, leaves_of(there, tensors), config).binding.ignored
    assert [*found] == (["config_groups.group_0.input_activations"] if option else [])
    assert all(f"activations={option};" in why for why in found.values())


def test_zero_points_of_symmetric_weights_are_left_out_by_name() -> None:
    tensors = {f"{Q}.weight": quantized(CASES["int4-group"][1], (8, 96))}
    there = CT.encode(specs_of(tensors), CONFIG)
    more = {f"{Q}.weight_zero_point": np.zeros((1, 3), np.int32)}
    binding = read(CT, {**leaves_of(there, tensors), **more}, there.config).binding
    assert "zero" in binding.ignored[f"{Q}.weight_zero_point"]


def test_scales_of_a_tensor_may_be_scalars() -> None:
    tensors = {f"{Q}.weight": quantized(CASES["fp8-tensor"][1], (8, 96))}
    there = CT.encode(specs_of(tensors), CONFIG)
    leaves = leaves_of(there, tensors)
    leaves[f"{Q}.weight_scale"] = leaves[f"{Q}.weight_scale"].reshape(())
    assert same(read(CT, leaves, there.config).read(f"{Q}.weight"), tensors[f"{Q}.weight"])


def test_decode_reports_everything_at_once() -> None:
    tensors = model(CASES["uint4-group"][1])
    there = CT.encode(specs_of(tensors), CONFIG)
    leaves = leaves_of(there, tensors)
    del leaves[f"{Q}.weight_scale"], leaves["model.layers.1.mlp.experts.1.up_proj.bias"]
    leaves["model.layers.1.self_attn.q_proj.weight_scale"] = np.zeros((56, 4), np.float32)
    leaves["model.layers.1.self_attn.q_proj.weight_global_scale"] = np.zeros(1, np.float32)
    leaves["model.layers.0.mlp.experts.0.gate_proj.weight_zero_point"] = np.zeros((5, 3), np.int64)
    leaves["model.layers.0.mlp.experts.2.up_proj.weight_shape"] = np.array([3, 64])
    leaves["model.layers.0.self_attn.k_proj.weight_packed"] = np.zeros((8, 12), np.int32)
    specs = {n: TensorSpec(a.shape, spec_of(a).dtype) for n, a in leaves.items()}
    found = problems_of(CT.decode, specs, seen_by(CT, leaves, there.config))
    assert "missing; expected BF16 [56, 3]" in found.pop(f"{Q}.weight_scale")
    assert "expected [56, 3]" in found.pop("model.layers.1.self_attn.q_proj.weight_scale")
    assert "did you mean" in found.pop("model.layers.1.self_attn.q_proj.weight_global_scale")
    assert "I64, expected I32" in found.pop("model.layers.0.mlp.experts.0.gate_proj.weight_zero_point")
    assert "[20, 12], expected [3, 8]" in found.pop("model.layers.0.mlp.experts.2.up_proj.weight_packed")
    assert "of 3 experts there is no 1.up_proj" in found.pop("model.layers.1.mlp.experts.gate_up_proj_bias")
    assert "2.up_proj is" in found.pop("model.layers.0.mlp.experts.gate_up_proj")
    assert any(n.startswith("model.layers.0.self_attn.k_proj") for n in found)
    assert all(
        ("k_proj" in n) or ("experts.2" in n) or n == "model.layers.1.mlp.experts.gate_up_proj" for n in found
    ), found


def test_config_that_cannot_be_followed() -> None:
    tensors = {f"{Q}.weight": quantized(CASES["int4-group"][1], (8, 96))}
    there = CT.encode(specs_of(tensors), CONFIG)
    leaves = leaves_of(there, tensors)
    specs = {n: TensorSpec(a.shape, spec_of(a).dtype) for n, a in leaves.items()}

    def problem(path: str, value: Any) -> str:
        config = json.loads(json.dumps(there.config))
        node = config["quantization_config"]
        *keys, last = path.split(".")
        for key in keys:
            node = node[key]
        node[last] = value
        return " & ".join(problems_of(CT.decode, specs, seen_by(CT, leaves, config)).values())

    group = "config_groups.group_0"
    assert "did you mean 'pack-quantized'" in problem(f"{group}.format", "packed-quantized")
    assert "no config group targets it" in problem(f"{group}.targets", ["re:.*k_proj"])
    assert "`ignore` lists it" in problem("ignore", [Q])
    assert "integers of 5 bits" in problem(f"{group}.weights.num_bits", 5)
    assert "reorders columns" in problem(f"{group}.weights.actorder", "group")
    assert "strategy 'token'" in problem(f"{group}.weights.strategy", "token")
    assert "expected [8, 2]" in problem(f"{group}.weights.group_size", 48)
    assert "expected [8, 32]" in problem(f"{group}.weights.group_size", 3)
    assert "missing" in problem(f"{group}.weights.symmetric", False)
    assert "transform_config" in problem("transform_config", {"config_groups": {"a": 1}})
    assert "no group with weights" in problem("config_groups", {})
    assert "is 4-bit float, blocks of 1 × 32" in problem(f"{group}.format", "mxfp4-pack-quantized")
    assert "config_groups is [1]; an object is needed" in problem("config_groups", [1])
    assert f"{group} is 'W4A16'; an object with targets" in problem(group, "W4A16")
    assert f"{group}.weights is 4; an object is needed" in problem(f"{group}.weights", 4)
    assert f"{group}.targets is 'Linear'; a list of names is needed" in problem(f"{group}.targets", "Linear")
    assert f"{group}.targets is 're:['; a regular expression" in problem(f"{group}.targets", ["Linear", "re:["])
    assert "ignore is [['lm_head']]; a list of names" in problem("ignore", [["lm_head"]])


@pytest.mark.parametrize("case", ["uint4-group", "nvfp4", "fp8-block"])
def test_no_config_and_no_leaf_is_a_surprise(case: str) -> None:
    """Whatever stands anywhere in quantization_config, and whatever a leaf is: understood, or a problem."""
    dialect, scheme, _ = CASES[case]
    tensors = {
        f"{Q}.weight": quantized(scheme, (56, 96)),
        f"{LAYER.format(0)}.down_proj": quantized(scheme, (2, 48, 96)),
    }
    there = dialect.encode(specs_of(tensors), CONFIG)
    seen = seen_by(dialect, leaves_of(there, tensors), there.config)
    for keys, value in changes(there.config["quantization_config"]):
        quant = changed(there.config["quantization_config"], keys, value)
        attempt(dialect, dict(there.leaves), {**seen, "quantization_config": quant})
    for name, spec in there.leaves.items():
        for shape in ((), (0,), (1,), (0, 0), (7, 5), (2, 3, 4), (1 << 40, 2)):
            for dtype in {spec.dtype, "I64", "F4"}:
                attempt(dialect, {**there.leaves, name: TensorSpec(shape, dtype)}, seen)


def changes(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every place in a JSON value, with each of a few values that do not belong there."""
    if at:
        yield from ((at, v) for v in (None, -1, 1.5, True, "re:[", [], [None], [[1]], {}, {"a": 1}, 10**30))
    if isinstance(node, dict | list):
        for key in node if isinstance(node, dict) else range(len(node)):
            yield from changes(node[key], (*at, key))


def changed(node: Any, keys: tuple[Any, ...], value: Any) -> Any:
    if not keys:
        return value
    out = dict(node) if isinstance(node, dict) else list(node)
    out[keys[0]] = changed(node[keys[0]], keys[1:], value)
    return out


def attempt(dialect: Any, leaves: dict[str, TensorSpec], config: dict[str, Any]) -> None:
    if dialect.recognizes(leaves, config):
        with suppress(PlanError):
            dialect.decode(leaves, config)


def test_encode_refuses_what_it_cannot_express() -> None:
    specs = {
        "a.weight": TensorSpec((8, 96), "BF16", Scheme("e2m1", 16, "e4m3", second="f32")),
        "b.weight": TensorSpec((8, 96), "BF16", Scheme("nf4", 32, "f32")),
        "c.weight": TensorSpec((8, 96), "BF16", Scheme("uint4", 32, "f16", zero="min_f16")),
        "d.weight": TensorSpec((8, 96), "BF16", Scheme("int4", 32, "bf16", block_rows=2)),
        "e.bias": TensorSpec((8, 96), "BF16", MXFP4),
        "f.weight": TensorSpec((3, 8, 96), "BF16", MXFP4),
        "g.weight": TensorSpec((8, 40), "BF16", MXFP4),
        "h.weight": TensorSpec((8, 96), "F32", MXFP4),
        "i.weight": TensorSpec((8, 96), "BF16", Scheme("int4", 32, "e4m3")),
        "j.weight": TensorSpec((8, 96), "BF16", Scheme("uint8", 0, "bf16", block_rows=0, zero="int")),
        "k.weight": TensorSpec((8, 96), "BF16", Scheme("e4m3", 0, "bf16", block_rows=4)),
    }
    found = problems_of(CT.encode, specs, CONFIG)
    assert set(found) == set(specs)
    assert "reciprocal" in found["a.weight"]
    assert "no format for it (allowed:" in found["b.weight"]
    assert "tiles of rows" in found["d.weight"]
    assert "no matrix of a linear module" in found["f.weight"]
    assert "not a multiple of the block of 32" in found["g.weight"]
    assert "decodes to F32, others to BF16" in found["h.weight"]


def test_recognition() -> None:
    assert not CT.recognizes({}, {})
    assert not CT.recognizes({}, {"quantization_config": {"quant_method": "mxfp4"}})
    assert CT.recognizes({}, {"quantization_config": {"quant_method": "compressed-tensors"}})

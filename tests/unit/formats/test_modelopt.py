"""The ModelOpt dialect: round trips, names, an independent decode, and what it refuses."""

import json
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
from plugins.formats.compressed_tensors.dialect import CompressedTensors
from plugins.formats.modelopt.dialect import COMPANION, NVFP4, ModelOpt
from tests.cases.quantized import leaves_of, quantized, read
from tests.oracles.blocks_by_hand import dequantize
from tests.unit.formats.test_compressed_tensors import (
    CONFIG,
    attempt,
    changed,
    changes,
    model,
    plain,
    problems_of,
    specs_of,
)

DIALECT = ModelOpt()
Q = "model.layers.0.self_attn.q_proj"


EXPERTS = "model.layers.{}.mlp.experts"


def whole_model() -> dict[str, Any]:
    """`model` with both matrices of the experts of layer 0 quantized, and neither of layer 1."""
    tensors = model(NVFP4)
    tensors[f"{EXPERTS.format(0)}.down_proj"] = quantized(NVFP4, (3, 96, 48), 7)
    tensors[f"{EXPERTS.format(1)}.gate_up_proj"] = plain(3, 40, 96)
    return tensors


def seen(binding: Any) -> dict[str, Any]:
    """The config that a loader hands over for a folder written from `binding`."""
    return {**binding.config, **{n: json.loads(b) for n, b in binding.files.items()}}


@pytest.mark.parametrize("older", [False, True])
def test_what_is_written_is_read_again(older: bool) -> None:
    tensors = whole_model()
    there = DIALECT.encode(specs_of(tensors), CONFIG)
    config = seen(there)
    if older:  # ModelOpt before 0.29 left config.json as it was
        del config["quantization_config"]
    assert DIALECT.recognizes(there.leaves, config)
    store = read(DIALECT, leaves_of(there, tensors), config)
    assert dict(store.specs) == specs_of(tensors)
    assert list(store.specs) == list(tensors)
    assert all(same(store.read(n), v) for n, v in tensors.items())
    rng = np.random.default_rng(0)
    for name, value in tensors.items():
        for box in random_boxes(store.specs[name], rng, 4):
            assert same(store.read(name, box), cut(value, box))
    assert store.binding.config == CONFIG
    assert DIALECT.encode(store.specs, store.binding.config) == there


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 4), st.integers(0, 99))
@settings(max_examples=30)
def test_any_shape(rows: int, blocks: int, stack: int, seed: int) -> None:
    name = "model.layers.7.mlp.experts.down_proj" if stack else f"{Q}.weight"
    shape = (stack, rows, 16 * blocks) if stack else (rows, 16 * blocks)
    tensors = {name: quantized(NVFP4, shape, seed)}
    there = DIALECT.encode(specs_of(tensors), CONFIG)
    assert same(read(DIALECT, leaves_of(there, tensors), seen(there)).read(name), tensors[name])


def test_names_and_config() -> None:
    tensors = whole_model()
    there = DIALECT.encode(specs_of(tensors), CONFIG)
    one = {n.removeprefix(f"{Q}."): (s.dtype, s.shape) for n, s in there.leaves.items() if n.startswith(f"{Q}.weight")}
    assert one == {"weight": ("U8", (56, 48)), "weight_scale": ("F8_E4M3", (56, 6)), "weight_scale_2": ("F32", ())}
    stacks = {
        n.removeprefix(f"{EXPERTS.format(0)}."): (s.dtype, s.shape)
        for n, s in there.leaves.items()
        if ".0.mlp.experts" in n
    }
    assert stacks == {
        "gate_up_proj": ("U8", (3, 48, 40)),
        "gate_up_proj_weight_scale": ("F8_E4M3", (3, 6, 40)),
        "gate_up_proj_weight_scale_2": ("F32", (3,)),
        "gate_up_proj_bias": ("BF16", (3, 40)),
        "down_proj": ("U8", (3, 24, 96)),
        "down_proj_weight_scale": ("F8_E4M3", (3, 3, 96)),
        "down_proj_weight_scale_2": ("F32", (3,)),
        "down_proj_bias": ("BF16", (3, 96)),
    }
    assert there.leaves[f"{EXPERTS.format(1)}.gate_up_proj"] == TensorSpec((3, 96, 40), "BF16")
    quant = there.config["quantization_config"]
    assert (quant["quant_method"], quant["quant_algo"]) == ("modelopt", "NVFP4")
    assert quant["ignore"] == ["model.embed_tokens", "lm_head", "model.layers.1.mlp.experts"]
    older = json.loads(there.files[COMPANION])
    assert older["producer"]["name"] == "modelopt"
    assert older["quantization"] == {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "exclude_modules": quant["ignore"],
    }
    weights_only = ModelOpt(quant_algo="W4A16_NVFP4").encode(specs_of(tensors), CONFIG)
    assert weights_only.config["quantization_config"]["quant_algo"] == "W4A16_NVFP4"
    assert DIALECT.recognizes(weights_only.leaves, weights_only.config)


def test_values_by_hand() -> None:
    """0x92: first element 2 (1.0), second 9 (−0.5); block scale 0x40 = 2.0; second-level scale 0.375."""
    leaves: dict[str, np.ndarray] = {
        f"{Q}.weight": np.full((1, 8), 0x92, np.uint8),
        f"{Q}.weight_scale": np.array([[0x40]], np.uint8).view(ml_dtypes.float8_e4m3fn),
        f"{Q}.weight_scale_2": np.array(0.375, np.float32),
    }
    config = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    values = dequantize(read(DIALECT, leaves, config).read(f"{Q}.weight"))
    assert values.tolist() == [[0.75, -0.375] * 8]


def test_input_scales_are_left_out_by_name() -> None:
    tensors = {f"{Q}.weight": quantized(NVFP4, (8, 96))}
    there = DIALECT.encode(specs_of(tensors), CONFIG)
    more = {f"{Q}.input_scale": np.ones((), np.float32), f"{Q}.k_scale": np.ones(1, np.float32)}
    leaves = {**leaves_of(there, tensors), **more}
    leaves[f"{Q}.weight_scale_2"] = leaves[f"{Q}.weight_scale_2"].reshape(1)
    store = read(DIALECT, leaves, seen(there))
    assert set(store.binding.ignored) == set(more)
    assert same(store.read(f"{Q}.weight"), tensors[f"{Q}.weight"])


@pytest.mark.parametrize("shape", [(), (1,)])
def test_one_second_scale_may_be_for_all_experts(shape: tuple[int, ...]) -> None:
    """As ModelOpt's own exports of gpt-oss have it: one quantizer for the whole stack."""
    name = f"{EXPERTS.format(2)}.gate_up_proj"
    tensors = {
        name: (q := quantized(NVFP4, (3, 40, 96))),
        f"{EXPERTS.format(2)}.down_proj": quantized(NVFP4, (3, 96, 48)),
    }
    q.second[:] = q.second[0]
    there = DIALECT.encode(specs_of(tensors), CONFIG)
    leaves = leaves_of(there, tensors)
    assert leaves[f"{name}_weight_scale_2"].tolist() == [q.second[0, 0, 0]] * 3
    leaves[f"{name}_weight_scale_2"] = q.second[0].reshape(shape)
    leaves[f"{name}_input_scale"] = np.ones((), np.float32)
    store = read(DIALECT, leaves, seen(there))
    assert store.binding.leaves[f"{name}_weight_scale_2"] == TensorSpec(shape, "F32")
    assert set(store.binding.ignored) == {f"{name}_input_scale"}
    assert same(store.read(name), q)
    assert same(store.read(name, np.s_[1:, 6:20]), cut(q, np.s_[1:, 6:20]))
    assert dict(DIALECT.encode(store.specs, store.binding.config).leaves) == dict(there.leaves)


def test_stacks_by_hand() -> None:
    """Byte [0, 1, 2] holds elements 2 and 3 of row 2 of expert 0: 6 (code 7) and −0.5 (code 9), times 2 · 0.375."""
    name = f"{EXPERTS.format(0)}.down_proj"
    packed = np.zeros((1, 8, 5), np.uint8)
    packed[0, 1, 2] = 0x97
    leaves = {
        name: packed,
        f"{name}_weight_scale": np.full((1, 1, 5), 2, ml_dtypes.float8_e4m3fn),
        f"{name}_weight_scale_2": np.array(0.375, np.float32),
    }
    config = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    values = dequantize(read(DIALECT, leaves, config).read(name))
    want = np.zeros((1, 5, 16))
    want[0, 2, 2:4] = 4.5, -0.375
    assert np.array_equal(values, want)


def test_stacks_quantized_by_half_are_refused() -> None:
    found = problems_of(DIALECT.encode, specs_of(model(NVFP4)), CONFIG)
    assert "both matrices or neither" in found[f"{EXPERTS.format(0)}.down_proj"]


def test_stacks_that_lack_something() -> None:
    tensors = whole_model()
    there = DIALECT.encode(specs_of(tensors), CONFIG)
    gate_up, down = f"{EXPERTS.format(0)}.gate_up_proj", f"{EXPERTS.format(0)}.down_proj"
    leaves = leaves_of(there, tensors)
    del leaves[f"{gate_up}_weight_scale_2"], leaves[down]
    leaves[f"{gate_up}_weight_scale"] = np.zeros((3, 40, 6), np.uint8)
    specs = {n: TensorSpec(a.shape, spec_of(a).dtype) for n, a in leaves.items()}
    found = problems_of(DIALECT.decode, specs, seen(there))
    assert "missing; expected F32 [3]" in found[f"{gate_up}_weight_scale_2"]
    assert "U8, expected F8_E4M3" in found[f"{gate_up}_weight_scale"]
    assert "expected [3, 6, 40]" in found[f"{gate_up}_weight_scale"]
    assert "needs U8 [E, in/2, out]" in found[down]


def test_decode_reports_everything_at_once() -> None:
    names = [f"model.layers.{n}.mlp.up_proj" for n in range(6)]
    tensors = {f"{n}.weight": quantized(NVFP4, (8, 96)) for n in names}
    there = DIALECT.encode(specs_of(tensors), CONFIG)
    leaves = leaves_of(there, tensors)
    del leaves[f"{names[0]}.weight_scale_2"], leaves[f"{names[1]}.weight"]
    leaves[f"{names[2]}.weight_scale"] = np.zeros((8, 5), np.uint8)
    leaves[f"{names[3]}.weight"] = np.zeros((8, 44), np.uint8)
    leaves[f"{names[4]}.pre_quant_scale"] = np.zeros(96, np.float32)
    leaves[f"{names[5]}.weight"] = np.zeros((8, 48), np.int8)
    specs = {n: TensorSpec(a.shape, spec_of(a).dtype) for n, a in leaves.items()}
    found = problems_of(DIALECT.decode, specs, seen(there))
    assert "missing; expected F32 []" in found[f"{names[0]}.weight_scale_2"]
    assert "needs U8 [out, in/2]" in found[f"{names[1]}.weight"]
    assert "expected F8_E4M3" in found[f"{names[2]}.weight_scale"]
    assert "expected [8, 6]" in found[f"{names[2]}.weight_scale"]
    assert "not a multiple of the block of 16" in found[f"{names[3]}.weight"]
    assert "pre_quant_scale" in found[f"{names[4]}.weight"]
    assert "I8, expected U8" in found[f"{names[5]}.weight"]
    config = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}}
    assert "(allowed: NVFP4, W4A16_NVFP4, FP8)" in problems_of(DIALECT.decode, {}, config)["config.json"]


@pytest.mark.parametrize("older", [False, True])
def test_no_config_and_no_leaf_is_a_surprise(older: bool) -> None:
    tensors = whole_model()
    there = DIALECT.encode(specs_of(tensors), CONFIG)
    config = seen(there)
    if older:
        del config["quantization_config"]
    for keys, value in changes(config):
        if keys != ("quantization_config",):  # an object, or the loader says so
            attempt(DIALECT, dict(there.leaves), changed(config, keys, value))
    for name, spec in there.leaves.items():
        for shape in ((), (0,), (1,), (0, 0), (7, 5), (2, 3, 4), (1 << 40, 2)):
            for dtype in {spec.dtype, "I64", "F4"}:
                attempt(DIALECT, {**there.leaves, name: TensorSpec(shape, dtype)}, config)


def test_the_reciprocal_is_not_converted() -> None:
    """The same values in other bytes: each dialect refuses the other's scheme, with the reason."""
    theirs = Scheme("e2m1", 16, "e4m3", second="inverse_f32")
    text = problems_of(DIALECT.encode, {"a.weight": TensorSpec((8, 96), "BF16", theirs)}, CONFIG)["a.weight"]
    assert "export=compressed_tensors" in text
    text = problems_of(CompressedTensors().encode, {"a.weight": TensorSpec((8, 96), "BF16", NVFP4)}, CONFIG)["a.weight"]
    assert "export=modelopt" in text
    with pytest.raises(PlanError):
        DIALECT.encode({"a.weight": TensorSpec((8, 96), "BF16", MXFP4)}, CONFIG)


def test_recognition() -> None:
    assert not DIALECT.recognizes({}, {})
    assert not DIALECT.recognizes({}, {"quantization_config": {"quant_method": "mxfp4"}})
    assert DIALECT.recognizes({}, {"quantization_config": {"quant_method": "modelopt"}})
    assert DIALECT.recognizes({}, {COMPANION: {"producer": {"name": "modelopt"}}})

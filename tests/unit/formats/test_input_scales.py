"""Scales of inputs in files: written beside weights, found again tensor by tensor, and what cannot be written."""

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pipeline.formats import INPUTS
from pipeline.tensors.inputs import InputScales, Stated, as_one
from pipeline.tensors.scheme import Scheme
from pipeline.testing.memory import MemoryStore
from plugins.formats.compressed_tensors.dialect import CompressedTensors
from plugins.formats.compressed_tensors.schemes import NVFP4 as INVERSE
from plugins.formats.modelopt.dialect import COMPANION, FP8, NVFP4, ModelOpt
from tests.cases.quantized import leaves_of, quant_method, quantized, read
from tests.unit.formats.test_compressed_tensors import CONFIG, LAYER, plain, problems_of, specs_of

INT8 = Scheme("int8", 0, "f32")
Q, DOWN, STACKS = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight", LAYER
COMPOSED = {
    "int8": ("int8",), "fp8": ("fp8_e4m3",), "nvfp4": ("nvfp4", "quant.second=f32"),
    "inverse": ("nvfp4", "quant.second=inverse_f32"), "mxfp4": ("mxfp4",),
}  # fmt: skip
TENSORS: dict[str, Any] = {"model.norm.weight": plain(96), "lm_head.weight": plain(104, 96)}


def method(kind: str) -> Any:
    return quant_method(*COMPOSED[kind])


def scales_of(kind: str, *names: str) -> InputScales:
    values = {name: float(np.float32(0.37) * np.float32(i + 1)) for i, name in enumerate(names)}
    return InputScales(as_one(method(kind).scheme), values)  # type: ignore[arg-type]


def there_and_back(dialect: Any, tensors: dict[str, Any], scales: InputScales) -> tuple[Any, dict[str, Any], Any]:
    """(what was bound for writing, the leaves, the scales as they are read)."""
    there = dialect.encode(specs_of(tensors), {**CONFIG, INPUTS: scales})
    leaves = leaves_of(there, tensors)
    config = {**there.config, **{n: json.loads(b) for n, b in there.files.items()}}
    binding = read(dialect, leaves, config).binding
    assert INPUTS not in there.config
    assert binding.config == CONFIG
    assert binding.input_scales is not None
    found = InputScales(binding.input_scales.scheme, Stated(MemoryStore(leaves), binding.input_scales))
    assert {*binding.ignored} == {n for n in leaves if "input_" in n}
    assert all("activations_scales=calibrated uses" in why for why in binding.ignored.values())
    return there, leaves, found


@pytest.mark.parametrize("kind", ["int8", "fp8", "inverse"])
def test_compressed_tensors_has_one_value_a_module(kind: str) -> None:
    """Of matrices whose sizes all differ."""
    scheme = {"int8": INT8, "fp8": FP8, "inverse": INVERSE}[kind]
    tensors = {Q: quantized(scheme, (56, 96)), DOWN: quantized(scheme, (96, 48), 1), **TENSORS}
    dialect = CompressedTensors(activations=method(kind), activations_scales="calibrated")
    scales = scales_of(kind, Q, DOWN)
    there, leaves, found = there_and_back(dialect, tensors, scales)
    leaf = "input_global_scale" if kind == "inverse" else "input_scale"
    for name in (Q, DOWN):
        stored = leaves[name.removesuffix("weight") + leaf]
        assert (stored.dtype, stored.shape, float(stored[0])) == (np.float32, (1,), scales.values[name])
    assert dict(found.values) == scales.values
    assert found.scheme == scales.scheme
    args = there.config["quantization_config"]["config_groups"]["group_0"]["input_activations"]
    assert (args["dynamic"], args["strategy"], args["num_bits"], args["type"]) == {
        "int8": (False, "tensor", 8, "int"), "fp8": (False, "tensor", 8, "float"),
        "inverse": ("local", "tensor_group", 4, "float"),
    }[kind]  # fmt: skip


def test_experts_that_are_written_one_by_one_have_their_stack_s() -> None:
    name = f"{STACKS.format(0)}.gate_up_proj"
    tensors = {
        name: quantized(INVERSE, (3, 40, 96)),
        f"{STACKS.format(0)}.down_proj": quantized(INVERSE, (3, 96, 32), 1),
    }
    dialect = CompressedTensors(activations=method("inverse"), activations_scales="calibrated")
    scales = scales_of("inverse", *tensors)
    _, leaves, found = there_and_back(dialect, {**tensors, **TENSORS}, scales)
    mine = {n: float(x[0]) for n, x in leaves.items() if n.endswith("gate_proj.input_global_scale")}
    assert mine == {f"{STACKS.format(0)}.{e}.gate_proj.input_global_scale": scales.values[name] for e in range(3)}
    assert dict(found.values) == scales.values
    leaves[f"{STACKS.format(0)}.1.up_proj.input_global_scale"] = np.array([0.01], np.float32)
    assert found.values[name] == np.float32(0.01), "of several the one that saturates nothing"


def test_modelopt_has_them_in_fp8_and_in_nvfp4_of_matrices_and_stacks() -> None:
    fp8 = {Q: quantized(FP8, (56, 96)), DOWN: quantized(FP8, (96, 48), 1), **TENSORS}
    dialect = ModelOpt(activations=method("fp8"), activations_scales="calibrated")
    scales = scales_of("fp8", Q, DOWN)
    there, leaves, found = there_and_back(dialect, fp8, scales)
    module = Q.removesuffix(".weight")
    shapes = {n.removeprefix(f"{module}."): (s.dtype, s.shape) for n, s in there.leaves.items() if module in n}
    assert shapes == {"weight": ("F8_E4M3", (56, 96)), "weight_scale": ("F32", ()), "input_scale": ("F32", ())}
    assert dict(found.values) == scales.values
    quant, older = there.config["quantization_config"], json.loads(there.files[COMPANION])["quantization"]
    args = {"dynamic": False, "num_bits": 8, "type": "float"}
    assert quant["config_groups"]["group_0"] == {"input_activations": args, "weights": args, "targets": ["Linear"]}
    assert (quant["quant_algo"], older["quant_algo"], older.get("group_size")) == ("FP8", "FP8", None)

    stack, down = f"{STACKS.format(0)}.gate_up_proj", f"{STACKS.format(0)}.down_proj"
    fp4 = {Q: quantized(NVFP4, (56, 96)), stack: quantized(NVFP4, (3, 40, 96)), down: quantized(NVFP4, (3, 96, 48), 1)}
    dialect = ModelOpt(activations=method("nvfp4"), activations_scales="calibrated")
    scales = scales_of("nvfp4", *fp4)
    there, leaves, found = there_and_back(dialect, {**fp4, **TENSORS}, scales)
    assert leaves[f"{stack}_input_scale"].shape == leaves[f"{module}.input_scale"].shape == ()
    assert float(leaves[f"{down}_input_scale"]) == scales.values[down]
    assert dict(found.values) == scales.values
    args = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    assert there.config["quantization_config"]["config_groups"]["group_0"]["input_activations"] == args


def test_fp8_of_modelopt_is_read_with_scales_of_one_dimension_too() -> None:
    """Values by hand: 0x40 is 2.0 in E4M3."""
    leaves: dict[str, Any] = {
        Q: np.full((2, 3), 0x40, np.uint8).view(ml_dtypes.float8_e4m3fn),
        f"{Q}_scale": np.array([0.25], np.float32),
    }
    config = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}
    store = read(ModelOpt(), leaves, config)
    q = store.read(Q)
    assert method("fp8").decode(q, "F32").tolist() == [[0.5] * 3] * 2
    assert store.binding.input_scales is None


@pytest.mark.parametrize(
    ("dialect", "scheme", "kind", "said"),
    [
        (CompressedTensors(), INT8, None, "calibrate=absmax makes some"),
        (CompressedTensors(), INT8, "fp8", "has scales for e4m3"),
        (ModelOpt(), FP8, None, "the checkpoint has none; calibrate=absmax makes some"),
    ],
)  # fmt: skip
def test_scales_that_are_not_there_or_others_are_said(dialect: Any, scheme: Scheme, kind: Any, said: str) -> None:
    rounding = method("int8" if scheme == INT8 else "fp8")
    asked = type(dialect)(activations=rounding, activations_scales="calibrated")
    given = {} if kind is None else {INPUTS: scales_of(kind, Q)}
    found = problems_of(asked.encode, specs_of({Q: quantized(scheme, (56, 96))}), {**CONFIG, **given})
    assert said in found["activations"]


def test_what_readers_have_no_word_for_is_said() -> None:
    int8, fp8, fp4 = ({Q: quantized(s, (56, 96))} for s in (INT8, FP8, NVFP4))
    more = {**CONFIG, INPUTS: scales_of("int8", Q)}
    calibrated: dict[str, Any] = {"activations_scales": "calibrated"}

    def said(dialect: Any, tensors: Any, config: Any = CONFIG) -> str:
        return " ".join(problems_of(dialect.encode, specs_of(tensors), config).values())

    assert "calibrate=absmax" in said(CompressedTensors(activations=method("inverse")), int8)
    assert "activations_scales=dynamic" in said(
        CompressedTensors(activations=method("mxfp4"), **calibrated), int8, more
    )
    two = {**int8, DOWN: quantized(INT8, (96, 48))}
    assert f"inputs of {DOWN}" in said(CompressedTensors(activations=method("int8"), **calibrated), two, more)
    assert "comes with calibrated scales of inputs" in said(ModelOpt(), fp8)
    assert "take calibrated scales of inputs alone" in said(ModelOpt(activations=method("nvfp4")), fp4)
    assert "activations=nvfp4, not int8" in said(ModelOpt(activations=method("int8"), **calibrated), fp4, more)
    only = ModelOpt("W4A16_NVFP4", method("nvfp4"), "calibrated")
    assert "has activations as they are" in said(only, fp4, {**CONFIG, INPUTS: scales_of("nvfp4", Q)})
    stack = {f"{STACKS.format(0)}.down_proj": quantized(FP8, (3, 96, 48))}
    assert "no stacks of experts in FP8" in said(ModelOpt(), stack)
    both = {**fp4, DOWN: quantized(FP8, (96, 48))}
    given = {**CONFIG, INPUTS: scales_of("nvfp4", Q, DOWN)}
    assert "NVFP4 and FP8 in one" in said(ModelOpt(activations=method("nvfp4"), **calibrated), both, given)


def test_inputs_of_two_kinds_are_left_out_by_name() -> None:
    tensors = {Q: quantized(INT8, (56, 96)), DOWN: quantized(INVERSE, (96, 48)), **TENSORS}
    there = CompressedTensors(int8="int-quantized").encode(specs_of(tensors), CONFIG)
    groups = there.config["quantization_config"]["config_groups"]
    for group in groups.values():
        is_int = group["weights"]["type"] == "int"
        group["input_activations"] = (
            {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False} if is_int
            else {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group", "dynamic": "local"}
        )  # fmt: skip
    leaf = {Q: "input_scale", DOWN: "input_global_scale"}
    more = {n.removesuffix("weight") + at: np.ones(1, np.float32) for n, at in leaf.items()}
    binding = read(CompressedTensors(), {**leaves_of(there, tensors), **more}, there.config).binding
    assert binding.input_scales is None
    assert {n: "describes how activations" in why for n, why in binding.ignored.items()} == dict.fromkeys(more, True)

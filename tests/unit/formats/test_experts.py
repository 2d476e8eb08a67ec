"""gpt-oss's experts as linear modules: gate and up apart, one scale for both where rows share it, and refusals."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pipeline.errors import SourceError
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.testing.memory import same
from plugins.formats.compressed_tensors.dialect import CompressedTensors
from plugins.formats.compressed_tensors.schemes import NVFP4
from plugins.formats.modelopt.dialect import NVFP4 as MODELOPT
from plugins.formats.modelopt.dialect import ModelOpt
from tests.cases.quantized import leaves_of, quantized, read
from tests.oracles.blocks_by_hand import dequantize
from tests.unit.formats.test_compressed_tensors import CONFIG, plain, problems_of, specs_of

CT = CompressedTensors()
GATE_UP, DOWN = "model.layers.4.mlp.experts.gate_up_proj", "model.layers.4.mlp.experts.down_proj"
BIAS = f"{GATE_UP}_bias"
TENSOR = Scheme("e4m3", 0, "f32", block_rows=0)
TILES = Scheme("e4m3", 32, "f32", block_rows=8)


def stacks(scheme: Scheme) -> dict[str, Any]:
    """Both matrices of three experts, quantized, and a plain bias."""
    return {GATE_UP: quantized(scheme, (3, 40, 96), 1), BIAS: plain(3, 40), DOWN: quantized(scheme, (3, 96, 64), 2)}


def encoded(tensors: dict[str, Any]) -> tuple[Any, dict[str, np.ndarray]]:
    there = CT.encode(specs_of(tensors), CONFIG)
    return there, leaves_of(there, tensors)


def expert(e: int, matrix: str, leaves: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    prefix = f"model.layers.4.mlp.experts.{e}.{matrix}."
    return {n.removeprefix(prefix): a for n, a in leaves.items() if n.startswith(prefix)}


def test_gate_has_the_even_rows_and_up_the_odd() -> None:
    tensors = stacks(MXFP4)
    leaves = encoded(tensors)[1]
    q = tensors[GATE_UP]
    for e in range(3):
        for phase, matrix in enumerate(("gate_proj", "up_proj")):
            found = expert(e, matrix, leaves)
            assert found.keys() == {"weight_packed", "weight_scale", "bias"}
            assert same(found["weight_packed"], q.codes[e, phase::2])
            assert same(found["weight_scale"], q.scales[e, phase::2])
            assert same(found["bias"], tensors[BIAS][e, phase::2])
        assert same(expert(e, "down_proj", leaves)["weight_packed"], tensors[DOWN].codes[e])


@pytest.mark.parametrize(("scheme", "leaf"), [(NVFP4, "weight_global_scale"), (TENSOR, "weight_scale")])
def test_one_scale_of_all_rows_is_stored_with_both(scheme: Scheme, leaf: str) -> None:
    tensors = stacks(scheme)
    there, leaves = encoded(tensors)
    one = tensors[GATE_UP].second if scheme is NVFP4 else tensors[GATE_UP].scales
    assert [expert(2, m, leaves)[leaf].tolist() for m in ("gate_proj", "up_proj")] == [[one[2, 0, 0]]] * 2
    store = read(CT, leaves, there.config)
    assert same(store.read(GATE_UP), tensors[GATE_UP])
    leaves[f"model.layers.4.mlp.experts.2.up_proj.{leaf}"][0] *= 2
    store = read(CT, leaves, there.config)
    assert same(store.read(GATE_UP, np.s_[:2,]).codes, tensors[GATE_UP].codes[:2])
    with pytest.raises(SourceError, match=rf"experts\.2\.up_proj\.{leaf}: holds .* one scale is for both"):
        store.read(GATE_UP, np.s_[2:,])


def test_rows_that_share_scales_cannot_be_stored_apart() -> None:
    found = problems_of(CT.encode, specs_of(stacks(TILES)), CONFIG)
    assert set(found) == {GATE_UP}
    assert "8 rows share a scale" in found[GATE_UP]
    assert "quant.block_rows=1" in found[GATE_UP]


def test_tiles_of_gate_and_up_are_no_tiles_of_both() -> None:
    """DeepSeek's blocks for each of gate and up, as a file of somebody else's may have them."""
    one = {f"model.layers.4.mlp.experts.0.{m}.weight": quantized(TILES, (24, 96)) for m in ("gate_proj", "up_proj")}
    there = CT.encode(specs_of(one), {**CONFIG, "model_type": "qwen3_moe"})
    specs = {n: TensorSpec(s.shape, s.dtype) for n, s in there.leaves.items()}
    found = problems_of(CT.decode, specs, {**there.config, "model_type": "gpt_oss"})
    assert "gate and up rows share scales 8 by 8" in found[GATE_UP]


def test_without_quantized_experts_stacks_stay_as_hugging_face_has_them() -> None:
    tensors = {
        "model.layers.4.self_attn.q_proj.weight": quantized(MXFP4, (56, 96)),
        GATE_UP: plain(3, 40, 96),
        BIAS: plain(3, 40),
    }
    for dialect in (CT, ModelOpt()):
        packs = {**tensors, "model.layers.4.self_attn.q_proj.weight": quantized(dialect_scheme(dialect), (56, 96))}
        there = dialect.encode(specs_of(packs), CONFIG)
        leaves = leaves_of(there, packs)
        assert same(leaves[GATE_UP], np.ascontiguousarray(tensors[GATE_UP].swapaxes(1, 2)))
        store = read(dialect, leaves, there.config)
        assert same(np.ascontiguousarray(store.read(GATE_UP)), tensors[GATE_UP])
        assert same(store.read(BIAS), tensors[BIAS])


def dialect_scheme(dialect: Any) -> Scheme:
    return MXFP4 if dialect is CT else MODELOPT


def test_stacks_of_other_models_are_not_guessed_at() -> None:
    other = {**CONFIG, "model_type": "llama4"}
    for dialect, scheme in ((CT, MXFP4), (ModelOpt(), MODELOPT)):
        found = problems_of(dialect.encode, specs_of(stacks(scheme)), other)
        assert set(found) == {GATE_UP, DOWN}
        assert "model_type 'llama4'" in found[DOWN]
    tensors = {"a.weight": quantized(MXFP4, (8, 96)), GATE_UP: plain(3, 40, 96)}
    assert CT.encode(specs_of(tensors), other).leaves[GATE_UP] == TensorSpec((3, 40, 96), "BF16")


def test_linear_experts_of_other_models_keep_their_names() -> None:
    names = [f"model.layers.0.mlp.experts.{e}.{m}.weight" for e in range(2) for m in ("gate_proj", "up_proj")]
    tensors = {n: quantized(MXFP4, (24, 96), i) for i, n in enumerate(names)}
    there = CT.encode(specs_of(tensors), {**CONFIG, "model_type": "qwen3_moe"})
    store = read(CT, leaves_of(there, tensors), there.config)
    assert list(store.specs) == names
    assert all(same(store.read(n), q) for n, q in tensors.items())


def test_modelopt_files_of_linear_experts_are_read() -> None:
    """Nothing of ModelOpt's writes gpt-oss so, but a file with `experts.0.gate_proj.weight` says what it means."""
    q = {m: quantized(MODELOPT, (24, 96), i) for i, m in enumerate(("gate_proj", "up_proj"))}
    q["up_proj"].second[...] = q["gate_proj"].second
    leaves: dict[str, np.ndarray] = {}
    for matrix, one in q.items():
        module = f"model.layers.4.mlp.experts.0.{matrix}"
        leaves[f"{module}.weight"], leaves[f"{module}.weight_scale"] = one.codes, one.scales
        leaves[f"{module}.weight_scale_2"] = one.second.reshape(())
    quant = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    value = read(ModelOpt(), leaves, {**CONFIG, "quantization_config": quant}).read(GATE_UP)
    assert value.shape == (1, 48, 96)
    assert np.array_equal(dequantize(value)[0, ::2], dequantize(q["gate_proj"]))
    assert np.array_equal(dequantize(value)[0, 1::2], dequantize(q["up_proj"]))


def test_a_row_too_many_is_a_problem() -> None:
    spec = TensorSpec((3, 41, 96), "BF16", MXFP4)
    assert "no matrix of a linear module" in problems_of(CT.encode, {GATE_UP: spec}, CONFIG)[GATE_UP]


def test_config_names_the_modules_that_are_there() -> None:
    quant = encoded({**stacks(MXFP4), "lm_head.weight": plain(37, 96)})[0].config["quantization_config"]
    assert quant["config_groups"]["group_0"]["targets"] == ["Linear"]
    assert quant["ignore"] == ["lm_head"]
    mixed = {**stacks(MXFP4), DOWN: quantized(Scheme("int8", 0, "bf16"), (3, 96, 64))}
    groups = encoded(mixed)[0].config["quantization_config"]["config_groups"]
    pattern = "re:model\\.layers\\.[0-9]+\\.mlp\\.experts\\.[0-9]+\\.down_proj$"
    assert [g["targets"] for g in groups.values()] == [[pattern], ["Linear"]]


def test_plain_experts_beside_quantized_ones_are_linear_too() -> None:
    tensors = {**stacks(MXFP4), DOWN: plain(3, 96, 50).astype(ml_dtypes.bfloat16)}
    there, leaves = encoded(tensors)
    assert same(expert(1, "down_proj", leaves)["weight"], tensors[DOWN][1])
    assert there.config["quantization_config"]["ignore"][0].endswith("down_proj$")

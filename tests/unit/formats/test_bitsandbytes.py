"""The bitsandbytes dialect: round trips, bytes and JSON by hand."""

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.testing.memory import cut, random_boxes, same, spec_of
from plugins.facts import codebooks
from plugins.formats.bitsandbytes.dialect import BitsAndBytes
from plugins.formats.bitsandbytes.state import LONGEST_NUMBER
from tests.cases.quantized import leaves_of, quantized, read, seen_by
from tests.oracles import scales as by_hand
from tests.oracles.blocks_by_hand import NF4, dequantize
from tests.unit.formats.test_compressed_tensors import CONFIG, problems_of, specs_of
from tests.unit.formats.test_compressed_tensors import plain as values

DIALECT = BitsAndBytes()
SINGLE, DOUBLE = Scheme("nf4", 64, "f32"), Scheme("nf4", 64, "dynamic8", second="dynamic8")
CASES = {"single": SINGLE, "double": DOUBLE, "blocks of 128": Scheme("nf4", 128, "f32")}
Q = "model.layers.0.self_attn.q_proj.weight"
STATE = f"{Q}.quant_state.bitsandbytes__nf4"


def model(scheme: Scheme) -> dict[str, Any]:
    tensors: dict[str, Any] = {"model.embed_tokens.weight": values(37, 128)}
    for n in range(2):
        tensors[f"model.layers.{n}.self_attn.q_proj.weight"] = quantized(scheme, (40, 256), n)
        tensors[f"model.layers.{n}.self_attn.q_proj.bias"] = values(40)
        tensors[f"model.layers.{n}.mlp.down_proj.weight"] = quantized(scheme, (600, 128), 5 + n)
        if scheme is not DOUBLE:
            tensors[f"model.layers.{n}.mlp.experts.gate_up_proj"] = quantized(scheme, (3, 24, 128), 9 + n)
    return tensors


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_is_read_again(case: str) -> None:
    tensors = model(CASES[case])
    there = DIALECT.encode(specs_of(tensors), CONFIG)
    leaves = leaves_of(there, tensors)
    assert DIALECT.recognizes(there.leaves, there.config)
    assert DIALECT.recognizes(there.leaves, {})
    store = read(DIALECT, leaves, there.config)
    assert dict(store.specs) == specs_of(tensors)
    assert list(store.specs) == list(tensors)
    rng = np.random.default_rng(0)
    for name, value in tensors.items():
        for box in random_boxes(store.specs[name], rng, 4):
            whole_rows = box[:-1] if isinstance(value, QTensor) else box
            assert same(store.read(name, whole_rows), cut(value, whole_rows)), (name, box)
    assert dict(store.binding.leaves) == dict(there.leaves)
    assert store.binding.config == CONFIG
    assert DIALECT.encode(store.specs, store.binding.config) == there


@given(st.sampled_from(sorted(CASES)), st.integers(1, 40), st.integers(1, 5), st.integers(0, 99))
@settings(max_examples=30)
def test_any_shape(case: str, rows: int, blocks: int, seed: int) -> None:
    scheme = CASES[case]
    tensors = {Q: quantized(scheme, (rows, scheme.block_elems * blocks), seed)}
    there = DIALECT.encode(specs_of(tensors), CONFIG)
    assert same(read(DIALECT, leaves_of(there, tensors), there.config).read(Q), tensors[Q])


def test_bytes_and_json_by_hand() -> None:
    codes = np.zeros((2, 32), np.uint8)
    codes[0, 0], codes[1, 31] = 0x21, 0xF0  # elements 1, 2, 0 … and … 0, 15
    q = QTensor(codes, np.array([[0.5], [2.0]], np.float32), SINGLE)
    leaves = leaves_of(DIALECT.encode({Q: spec_of(q)}, CONFIG), {Q: q})
    assert set(leaves) == {Q, f"{Q}.absmax", f"{Q}.quant_map", STATE}
    weight = leaves[Q]
    assert (weight.shape, weight.dtype) == ((64, 1), np.uint8)
    assert (weight[0, 0], weight[63, 0], weight.sum()) == (0x12, 0x0F, 0x12 + 0x0F)
    assert leaves[f"{Q}.absmax"].tolist() == [0.5, 2.0]
    assert struct.pack("<16f", *NF4) == leaves[f"{Q}.quant_map"].tobytes()
    want = b'{"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [2, 64]}'
    assert leaves[STATE].tobytes() == want
    decoded = dequantize(q)
    assert decoded[0, 0] == float(np.float32(-0.6961928009986877)) * 0.5
    assert decoded[1, 63] == 2.0


def test_double_quantized_json_has_room_for_any_offset() -> None:
    lengths = set()
    for offset in (0.0, 1.0, -1.2345678e-38, 3.4028235e38, 1e-45, 0.1):
        q = quantized(DOUBLE, (40, 256))
        assert q.second is not None
        q.second[-1] = offset
        there = DIALECT.encode({Q: spec_of(q)}, CONFIG)
        leaves = leaves_of(there, {Q: q})
        content = leaves[STATE].tobytes()
        lengths.add(len(content))
        state = json.loads(content)
        assert np.float32(state["nested_offset"]) == np.float32(offset)
        assert (state["nested_blocksize"], state["nested_dtype"], state["shape"]) == (256, "float32", [40, 256])
        assert leaves[f"{Q}.nested_absmax"].tolist() == q.second[:-1].tolist()
        assert leaves[f"{Q}.absmax"].shape == (160,)
        assert same(read(DIALECT, leaves, there.config).read(Q), q)
    assert len(lengths) == 1
    assert max(len(repr(float(np.float32(x)))) for x in (-1.2345678e-38, -1e-45)) <= LONGEST_NUMBER


def test_code_books() -> None:
    assert codebooks.nf4().tobytes() == NF4.tobytes()
    assert np.array_equal(codebooks.dynamic8(), by_hand.dynamic_map())
    assert (np.diff(codebooks.dynamic8()) > 0).all()


def test_config() -> None:
    tensors = {Q: quantized(DOUBLE, (40, 256)), "model.layers.0.mlp.gate.weight": values(4, 128)}
    quant = DIALECT.encode(specs_of(tensors), CONFIG).config["quantization_config"]
    assert quant["bnb_4bit_use_double_quant"] is True
    assert quant["llm_int8_skip_modules"] == ["model.layers.0.mlp.gate", "lm_head"]


def test_what_decode_refuses() -> None:
    names = [f"model.layers.{n}.mlp.up_proj.weight" for n in range(9)]
    tensors = {n: quantized(DOUBLE if i == 6 else SINGLE, (8, 128)) for i, n in enumerate(names)}
    there = DIALECT.encode(specs_of(tensors), CONFIG)
    leaves = leaves_of(there, tensors)

    def state(i: int, **changed: Any) -> None:
        leaf = f"{names[i]}.quant_state.bitsandbytes__nf4"
        content = json.dumps({**json.loads(leaves[leaf].tobytes()), **changed})
        leaves[leaf] = np.frombuffer(content.encode(), np.uint8)

    del leaves[f"{names[0]}.quant_map"]
    leaves[f"{names[1]}.quant_map"] = leaves[f"{names[1]}.quant_map"] * np.float32(1.5)
    leaves[f"{names[2]}.absmax"] = np.zeros(15, np.float64)
    state(3, shape=[8, 96])
    state(4, blocksize=63)
    state(5, quant_type="fp4")
    state(6, nested_blocksize=128)
    leaves[f"{names[7]}.quant_state.bitsandbytes__nf4"] = np.zeros(7, np.uint8)
    leaves[f"{names[8]}.nested_absmax"] = np.zeros(1, np.float32)
    specs = {n: TensorSpec(a.shape, spec_of(a).dtype) for n, a in leaves.items()}
    found = problems_of(DIALECT.decode, specs, seen_by(DIALECT, leaves, there.config))
    assert "quant_map is missing" in found[names[0]]
    assert "not the code book" in found[names[1]]
    assert "has dtype F64" in found[f"{names[2]}.absmax"]
    assert "expected [16]" in found[f"{names[2]}.absmax"]
    assert "not a multiple of the blocksize 64" in found[names[3]]
    assert "blocksize is 63 (allowed: 32, 64" in found[names[4]]
    assert "quant_type 'fp4'" in found[names[5]]
    assert "nested_blocksize is 128" in found[names[6]]
    assert "not JSON at character 0" in found[names[7]]
    assert "no part of its module's format" in found[f"{names[8]}.nested_absmax"]
    assert len(found) == 9
    config = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
    assert "LLM.int8" in problems_of(DIALECT.decode, {}, config)["config.json"]


def test_what_encode_refuses() -> None:
    specs = {
        "a.weight": TensorSpec((8, 96), "BF16", MXFP4),
        "b.weight": TensorSpec((8, 128), "BF16", Scheme("nf4", 64, "bf16")),
        "c.weight": TensorSpec((8, 96), "BF16", Scheme("nf4", 48, "f32")),
        "d.weight": TensorSpec((8, 128), "BF16", Scheme("nf4", 64, "f32", second="f32")),
        "m.experts.down_proj": TensorSpec((3, 8, 128), "BF16", DOUBLE),
    }
    found = problems_of(DIALECT.encode, specs, CONFIG)
    assert set(found) == set(specs)
    assert "cannot be taken apart" in found["m.experts.down_proj"]

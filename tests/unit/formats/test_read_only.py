"""GPTQ, AWQ and FP8 of tiles: values are those that the libraries' own code makes of the same bytes.

`qlinears.npz` has modules that AutoGPTQ's `QuantLinear.pack` and AutoAWQ's `WQLinear_GEMM.from_linear` packed, and what
their `forward` (of the identity) and `dequantize_gemm` make of them, fp16 on a CPU.
"""

from collections.abc import Iterator
from math import gcd
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pipeline.errors import PlanError
from pipeline.formats import PEEKED, Dialect
from pipeline.ops import Kernel
from pipeline.tensors.blocks import grain_of
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.views import JoinedStore
from pipeline.testing.memory import MemoryStore, same, spec_of
from plugins.formats.awq.dialect import Awq
from plugins.formats.awq.words import AwqCodes, AwqWords
from plugins.formats.fp8.dialect import Fp8
from plugins.formats.fp8.tiles import CutTiles
from plugins.formats.gptq.dialect import Gptq
from plugins.formats.gptq.zeros import OneLess
from plugins.formats.safetensors.plain import Plain

RECORD = Path(__file__).parents[2] / "cases" / "qlinears.npz"
UNPACK = Kernel("dequantize", ("numpy",))
MODULE = "model.layers.0.self_attn.q_proj"
CASES = {f"gptq{bits}": (Gptq(), {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": False})
         for bits, size in ((2, 32), (3, 32), (4, 32), (8, -1))}  # fmt: skip
CASES |= {"awq": (Awq(), {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True})}


def source(case: str) -> tuple[dict[str, Any], Any]:
    """Leaves of a model of one module, and its values."""
    with np.load(RECORD) as found:
        leaves = {f"{MODULE}.{n.partition('.')[2]}": found[n] for n in found.files if n.startswith(f"{case}.")}
        return {**leaves, "model.norm.weight": np.ones(96, np.float16)}, found[case]


def boxes(shape: tuple[int, ...], grain: tuple[int, ...], count: int) -> Iterator[tuple[slice, ...]]:
    """Random ones, whose bounds are multiples of `grain`, or the ends."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        ends = [sorted(rng.choice(-(-n // g) + 1, 2, replace=False) * g) for n, g in zip(shape, grain, strict=True)]
        yield tuple(slice(int(a), min(int(b), n)) for (a, b), n in zip(ends, shape, strict=True))


def opened(dialect: Dialect, leaves: dict[str, Any], quantization: Any, dtype: str = "float16") -> JoinedStore:
    config = {"torch_dtype": dtype, "quantization_config": quantization}
    peeked = {n: a for n, a in leaves.items() if n.endswith(".g_idx")}
    specs = {n: spec_of(a) for n, a in leaves.items()}
    assert dialect.recognizes(specs, config)
    binding = dialect.decode(specs, {**config, PEEKED: peeked})
    assert {*binding.leaves} == {*leaves}
    assert dict(binding.config) == {"torch_dtype": dtype}
    return JoinedStore(MemoryStore(leaves), binding)


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_the_library(case: str) -> None:
    leaves, values = source(case)
    store = opened(CASES[case][0], leaves, CASES[case][1])
    spec = store.specs[f"{MODULE}.weight"]
    assert (spec.shape, spec.dtype) == (values.shape, "F16")
    whole = store.read(f"{MODULE}.weight")
    assert isinstance(whole, QTensor)
    np.testing.assert_array_equal(UNPACK(whole, "F16").view(np.uint16), values.view(np.uint16))
    given = MemoryStore({f"{MODULE}.weight": whole})
    for box in boxes(spec.shape, grain_of(store, f"{MODULE}.weight"), 9):
        assert same(store.read(f"{MODULE}.weight", box), given.read(f"{MODULE}.weight", box))
    assert store.specs["model.norm.weight"].scheme is None


def test_zeros_of_the_second_format_are_as_they_lie() -> None:
    leaves, _ = source("gptq4")
    first, second = (
        opened(Gptq(), leaves, CASES["gptq4"][1] | stated).read(f"{MODULE}.weight")
        for stated in ({"checkpoint_format": "gptq"}, {"format": "gptq_v2"})
    )
    np.testing.assert_array_equal(first.zeros, (second.zeros + 1) & 15)


@pytest.mark.parametrize("scale", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("width", [384, 320, 100, 257])
def test_tiles_of_fp8_multiply(scale: Any, width: int) -> None:
    """Bands and columns of tiles may be cut at the end."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 0x7F, (200, width), np.uint8).view(ml_dtypes.float8_e4m3fn)
    scales = rng.uniform(0.01, 0.02, (2, -(-width // 128))).astype(scale)
    leaves = {f"{MODULE}.weight": codes, f"{MODULE}.weight_scale_inv": scales}
    quantization = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    store = opened(Fp8(), leaves, quantization, "bfloat16")
    assert "activation_scheme" in store.binding.ignored
    static = opened(Fp8(), leaves, quantization | {"activation_scheme": "static"})
    assert not static.binding.ignored
    wide = np.repeat(np.repeat(scales.astype(np.float32), 128, 0)[:200], 128, 1)[:, :width]
    expected = (codes.astype(np.float32) * wide).astype(ml_dtypes.bfloat16)
    whole = store.read(f"{MODULE}.weight")
    found = UNPACK(whole, "BF16")
    given = MemoryStore({f"{MODULE}.weight": whole})
    for box in boxes((200, width), grain_of(store, f"{MODULE}.weight"), 9):
        assert same(store.read(f"{MODULE}.weight", box), given.read(f"{MODULE}.weight", box))
    short = leaves | {f"{MODULE}.weight_scale_inv": scales[:, :-1]}
    with pytest.raises(PlanError, match=r"q_proj\.weight_scale_inv: has shape \[2, \d\], expected \[2, \d\]"):
        opened(Fp8(), short, quantization)
    with pytest.raises(PlanError, match=r"q_proj\.weight: is F8_E4M3 and has no weight_scale_inv"):
        opened(Fp8(), {f"{MODULE}.weight": codes}, quantization)
    np.testing.assert_array_equal(found.view(np.uint16), expected.view(np.uint16))
    if width > 128 and width % 128:
        cut = CutTiles(128 // gcd(128, width), width // gcd(128, width))
        np.testing.assert_array_equal(cut.pack(whole.scales), scales)
        with pytest.raises(IndexError, match="whose last tile is cut"):
            cut.box((slice(0, 1), slice(0, 1)))


@pytest.mark.parametrize(
    ("case", "changed", "said"),
    [
        ("gptq4", {"bits": 5}, "bits=5 (allowed: 2, 3, 4, 8)"),
        ("gptq4", {"group_size": None}, "group_size=None"),
        ("gptq4", {"checkpoint_format": "marlin"}, "format='marlin' (allowed: gptq, gptq_v2)"),
        ("gptq4", {"group_size": 40}, "qzeros"),
        ("gptq4", {"group_size": 64}, "last dimension 160 is not a multiple of the block of 64"),
        ("gptq4", {"bits": 8}, "last dimension 80 is not a multiple of the block of 32"),
        ("gptq4", {"format": "bitblas"}, "format='bitblas' (allowed: gptq, gptq_v2)"),
        ("gptq4", {"format": "gptq_v2", "checkpoint_format": "gptq"}, "and checkpoint_format='gptq'"),
        ("gptq4", {"desc_act": True}, "desc_act=true, and no g_idx says"),
        ("gptq4", {"group_size": 10**30}, "group_size=1000000"),
        ("gptq4", {"bits": 4.0}, "bits=4.0"),
        ("gptq4", {"group_size": True}, "group_size=True"),
        ("awq", {"version": "gemv"}, "version='gemv' (allowed: gemm)"),
        ("awq", {"zero_point": False}, "zero_point=False (allowed: true)"),
        ("awq", {"bits": 8}, "bits=8 (allowed: 4)"),
    ],
)
def test_what_cannot_be_read_is_said(case: str, changed: dict[str, Any], said: str) -> None:
    leaves = {n: a for n, a in source(case)[0].items() if not n.endswith(".g_idx")}
    with pytest.raises(PlanError) as caught:
        opened(CASES[case][0], leaves, CASES[case][1] | changed)
    assert said in str(caught.value)


def test_columns_in_another_order_are_refused() -> None:
    leaves, _ = source("gptq4")
    order = np.roll(leaves[f"{MODULE}.g_idx"], 1)
    with pytest.raises(PlanError, match=r"q_proj\.weight: g_idx says that columns are in another order \(desc_act\)"):
        opened(Gptq(), leaves | {f"{MODULE}.g_idx": order}, CASES["gptq4"][1])
    quantization = CASES["gptq4"][1] | {"desc_act": True}
    assert opened(Gptq(), leaves, quantization).specs, "which g_idx does not do"
    specs = {n: spec_of(a) for n, a in leaves.items()}
    with pytest.raises(PlanError, match="g_idx is too large to be looked at"):
        Gptq().decode(specs, {"quantization_config": quantization, PEEKED: {}})


@pytest.mark.parametrize("case", ["gptq4", "awq"])
def test_leaves_that_are_missing_or_strange_are_said(case: str) -> None:
    leaves, _ = source(case)
    del leaves[f"{MODULE}.qzeros"]
    with pytest.raises(PlanError, match=r"q_proj\.qzeros: missing; expected I32"):
        opened(CASES[case][0], leaves, CASES[case][1])
    leaves, _ = source(case)
    with pytest.raises(PlanError, match=r"q_proj\.weight: is no part of its module's format"):
        opened(CASES[case][0], leaves | {f"{MODULE}.weight": np.zeros((96, 160), np.float16)}, CASES[case][1])
    for stranger in ("foo", "g_idx" if case == "awq" else "qscale"):
        with pytest.raises(PlanError, match=rf"q_proj\.{stranger}: is no part of its module's format"):
            opened(CASES[case][0], leaves | {f"{MODULE}.{stranger}": np.zeros(160, np.int32)}, CASES[case][1])
    bias = {f"{MODULE}.bias": np.zeros(96, np.float16)}
    assert opened(CASES[case][0], leaves | bias, CASES[case][1]).specs[f"{MODULE}.bias"].shape == (96,)
    del leaves[f"{MODULE}.qweight"]
    with pytest.raises(PlanError, match=r"q_proj\.weight: qweight is missing; a matrix is expected"):
        opened(CASES[case][0], leaves, CASES[case][1])
    with pytest.raises(PlanError, match="is read, and not written"):
        CASES[case][0].encode({"w": TensorSpec((2, 2), "F32")}, {})


@pytest.mark.parametrize(("case", "name"), [("gptq4", "quantize_config.json"), ("awq", "quant_config.json")])
def test_a_file_of_the_library_s_own_will_do(case: str, name: str) -> None:
    dialect, given = CASES[case]
    leaves, _ = source(case)
    specs = {n: spec_of(a) for n, a in leaves.items()}
    own = {k: v for k, v in given.items() if k != "quant_method"}
    if case == "awq":
        own = {"zero_point": True, "q_group_size": own["group_size"], "w_bit": own["bits"], "version": "GEMM"}
    assert dialect.companions == (name,)
    assert dialect.recognizes(specs, {name: own})
    assert not dialect.recognizes({"w": TensorSpec((2, 2), "F32")}, {name: own}), "a file that was left behind"
    seen = {"torch_dtype": "float16", PEEKED: {n: a for n, a in leaves.items() if n.endswith(".g_idx")}}
    binding = dialect.decode(specs, seen | {name: own})
    whole = dialect.decode(specs, seen | {"quantization_config": given})
    assert binding == whole


def test_quantization_that_nobody_reads_is_not_taken_for_plain_weights() -> None:
    config = {"quantization_config": {"quant_method": "gptx"}}
    with pytest.raises(PlanError, match=r"says quant_method 'gptx', which is not read; did you mean 'gptq'"):
        Plain().decode({"w": TensorSpec((2, 2), "F32")}, config)
    said = r"quantization_config: has bits, group_size, and no quant_method, .* \(read: awq, .*, gptq, modelopt, "
    with pytest.raises(PlanError, match=said):
        Plain().decode({"w": TensorSpec((2, 2), "F32")}, {"quantization_config": {"bits": 4, "group_size": 32}})
    with pytest.raises(PlanError, match=r"q_proj\.qweight: is packed by GPTQ or AWQ, and neither"):
        Plain().decode({f"{MODULE}.qweight": TensorSpec((2, 2), "I32")}, {})


@pytest.mark.parametrize(("step", "most"), [(AwqCodes(), 256), (AwqWords(), 16), (OneLess(3), 8)])
def test_steps_lose_nothing(step: Any, most: int) -> None:
    value = np.random.default_rng(2).integers(0, most, (40, 24), np.uint8)
    np.testing.assert_array_equal(step.unpack(step.pack(value)), value)

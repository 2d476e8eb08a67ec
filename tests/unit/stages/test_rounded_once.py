"""Values are rounded once, where they are written: packed and wide sources on the way to fp32, fp16 and codes."""

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

import pipeline
from pipeline.coded_store import CodedStore
from pipeline.errors import ValueRangeError
from pipeline.ops import Kernel
from pipeline.reporting.manifest import chosen
from pipeline.rules import Rule
from pipeline.stage import Context
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.stats import ErrorStats
from pipeline.tensors.views import MappedStore
from pipeline.testing.memory import MemoryStore, checkpoint
from plugins.formats.compressed_tensors.dialect import CompressedTensors
from plugins.formats.safetensors.container import SafeTensors
from plugins.quant.blockwise import Blockwise
from plugins.quant.none import Unquantized
from stages.decode import AsBf16
from stages.load import Load
from stages.quantize import Quantize
from tests.cases import toy_gpt_oss, toy_llama

DEQUANTIZE = Kernel("dequantize", ("reference",))

INT8 = Blockwise(element="int8", block_elems=0, scale="f32", scale_rule="amax")
NAME = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A Llama in fp32, and what int8 makes of it: its scales are no bf16 numbers."""
    folder = tmp_path_factory.mktemp("sources")
    rng = np.random.default_rng(0)
    tensors = {n: a.astype(np.float32) for n, a in toy_llama.weights().items()}
    tensors = {n: (a * (1 + rng.uniform(0, 1e-3, a.shape))).astype(np.float32) for n, a in tensors.items()}
    toy_gpt_oss.write(folder / "wide", toy_gpt_oss.Toy(toy_llama.CONFIG, tensors, {}))
    convert(folder / "wide", folder / "packed", "quant=int8", "export=compressed_tensors")
    return {"wide": folder / "wide", "packed": folder / "packed"}


def convert(source: Path, target: Path, *more: str) -> Any:
    how = (f"model.source={source}", f"export.path={target}", f"paths.run={target}-run", "flow=convert")
    return pipeline.run(["+model=llama", *how, *more])


def exact(source: Path) -> dict[str, Any]:
    """Every tensor as float32, decoded by the definition where it is packed."""
    loaded = Load(str(source), (SafeTensors(),), (CompressedTensors(),)).run(Context(source)).store
    values = {n: loaded.read(n) for n in loaded.specs}
    assert isinstance(values[NAME], QTensor)
    return {n: DEQUANTIZE(v, "F32") if isinstance(v, QTensor) else v for n, v in values.items()}


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("kind", ["packed", "wide"])
@pytest.mark.brief
def test_exports_of_values(sources: dict[str, Path], tmp_path: Path, kind: str, dtype: str) -> None:
    convert(sources[kind], tmp_path / "out", "quant=none", f"export.dtype={dtype}")
    found = load_file(tmp_path / "out" / "model.safetensors")
    want = exact(sources["packed"]) if kind == "packed" else load_file(sources["wide"] / "model.safetensors")
    to: Any = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}[dtype]
    assert found.keys() == want.keys()
    for name, value in want.items():
        assert found[name].tobytes() == value.astype(to).tobytes(), name
    if dtype == "fp32":
        assert any((v != v.astype(ml_dtypes.bfloat16).astype(np.float32)).any() for v in found.values())


def test_what_is_rounded_unasked_is_said(sources: dict[str, Path], tmp_path: Path) -> None:
    given = ["+model=llama", f"model.source={sources['wide']}", f"paths.run={tmp_path}", "flow=convert", "export=hf"]
    [said, asked, kept] = [
        pipeline.plan([*given, *more]).plan for more in ([], ["export.dtype=bf16"], ["stages.decode.dtype=keep"])
    ]
    text = chosen(said)["export"]
    assert "and 7 more (F32 in the source) rounded to bf16; stages.decode.dtype=keep leaves them as they are" in text
    assert "rounded" not in str([chosen(asked), chosen(kept)])
    assert {s.dtype for s in kept.works["export"].store.specs.values()} == {"F32"}


def test_packed_values_that_the_source_states_as_fp16_and_become_bf16_are_said(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    """As GPTQ's and AWQ's are, whose scales are fp16: where they are unpacked, unless export.dtype says to what."""
    half = tmp_path / "half"
    shutil.copytree(sources["packed"], half)
    config = json.loads((half / "config.json").read_text())
    (half / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))
    given = ["+model=llama", f"model.source={half}", f"paths.run={tmp_path}/run", "flow=convert"]
    words = "(int8/row/f32 of F16 in the source) rounded to bf16; export.dtype=fp16 or fp32 has more digits"
    for more, said in (
        (["quant=none"], True),
        (["quant=none", "stages.decode.dtype=keep"], True),
        (["quant=none", "export.dtype=fp16"], False),
        (["quant=none", "export.dtype=bf16"], False),
        ([], False),
    ):
        plan = pipeline.plan([*given, *more]).plan
        assert not plan.problems
        assert (words in chosen(plan)["export"]) == said, more


def test_what_is_not_asked_for_wider_is_bf16(sources: dict[str, Path], tmp_path: Path) -> None:
    convert(sources["packed"], tmp_path / "out", "quant=none")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found[NAME].tobytes() == exact(sources["packed"])[NAME].astype(ml_dtypes.bfloat16).tobytes()


@pytest.mark.parametrize("shared", [1, 0], ids=["a scale a row", "a scale a matrix"])
def test_codes_made_again_and_their_errors_are_of_the_exact_values(
    monkeypatch: pytest.MonkeyPatch, shared: int
) -> None:
    rng = np.random.default_rng(1)
    q = INT8.encode(rng.standard_normal((96, 64)).astype(np.float32))
    values = INT8.decode(q, "F32")
    method = Blockwise(element="e4m3", block_elems=0, block_rows=shared, scale="f32", scale_rule="amax")
    stage = Quantize(method, (Rule(match="*"),), allow_requantize=True)
    store: Any = stage.run(Context(Path()), checkpoint({"w": q})).store
    want, stats = method.encode(values, measure=True)
    said: list[ErrorStats] = []
    monkeypatch.setattr("pipeline.coded_store.meter.error", lambda name, stats: said.append(stats))
    store.read("w")
    assert said == [stats]
    assert said[0].max_abs == ErrorStats.between(values, method.decode(want, "F32")).max_abs
    for rows in (slice(0, 96), slice(32, 64)):  # a piece asks for the extremes of the whole
        got = store.read("w", (rows,))
        assert np.array_equal(got.codes, want.codes[rows])
    assert not np.array_equal(want.codes, method.encode(values.astype(ml_dtypes.bfloat16)).codes)


def test_the_stage_says_what_it_gives() -> None:
    q = INT8.encode(np.ones((8, 64), np.float32))
    for plain, dtype in (("bf16", "BF16"), ("keep", "F32")):
        store = CodedStore(MemoryStore({"w": q}), {"w": Unquantized()}, False, plain)  # type: ignore[arg-type]
        assert store.specs["w"].dtype == dtype
        assert store.read("w", (slice(2, 4),)).dtype == np.dtype(dtype.replace("F32", "f4").replace("BF16", "bfloat16"))


def test_a_value_that_bf16_cannot_hold_is_said_with_its_tensor() -> None:
    store = MappedStore(MemoryStore({"w": np.array([[1.0, 2.0], [1e300, 3.0]])}), AsBf16(Kernel("cast", ("numpy",))))
    with pytest.raises(ValueRangeError, match=r"^w\[1:2,0:2\]: flat index 0: 1e\+300 is out of range of BF16; stages"):
        store.read("w", (slice(1, 2),))

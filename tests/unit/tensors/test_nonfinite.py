"""How many values or scales that are written are NaN or infinite: as NumPy counts them, of every dtype and sign."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import pipeline
from pipeline.reporting.tables import tables
from pipeline.tensors.nonfinite import nonfinite
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, STRUCT_HALVES, STRUCTS, Scheme
from pipeline.tensors.spec import numpy_dtype
from plugins.facts.ggml_blocks import decode
from tests.cases import two_layers


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2"])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_values_are_counted_as_numpy_does(dtype: str, bad: float) -> None:
    values = np.concatenate([np.linspace(-400, 400, 60), [0.0, -0.0]]).reshape(2, 31).astype(numpy_dtype(dtype))
    assert nonfinite(values, dtype) == 0
    assert nonfinite(values.T, dtype) == 0
    values[0, 3] = values[1, 7] = bad
    assert nonfinite(values, dtype) == np.count_nonzero(~np.isfinite(values.astype(np.float32))) == 2
    assert nonfinite(values[:, ::3], dtype) == 1


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_values_are_finite(sign: int) -> None:
    for dtype, largest in {"BF16": 3.3895e38, "F16": 65504.0, "F32": 3.4028234e38, "F8_E4M3": 448.0}.items():
        assert nonfinite(np.array([sign * largest], numpy_dtype(dtype)), dtype) == 0
    assert nonfinite(np.array([], np.float32), "F32") == nonfinite(np.array([2**15], np.int32), "I32") == 0


@pytest.mark.parametrize(
    ("scale", "bad"), [("e8m0", 0xFF), ("e4m3", 0x7F), ("e4m3", 0xFF), ("f16", 0xFC00), ("f32", 0x7FC0_0000)]
)
def test_of_what_is_packed_scales_count(scale: str, bad: int) -> None:
    scheme = MXFP4 if scale == "e8m0" else Scheme("e2m1", 32, scale)
    spelt = {"e8m0": "u1", "e4m3": "u1", "f16": "u2", "f32": "u4"}[scale]
    scales = np.ones((4, 2), spelt)
    typed = np.dtype("u1") if scale == "e8m0" else numpy_dtype(scheme.dtypes["scales"])
    codes = np.full((4, 32), 0xFF, np.uint8)  # of which no pattern is NaN
    assert nonfinite(QTensor(codes, scales.view(typed), scheme), "BF16") == 0
    scales[1, 0] = scales[3, 1] = bad
    assert nonfinite(QTensor(codes, scales.view(typed), scheme), "BF16") == 2


def test_second_level_scales_count() -> None:
    scheme = Scheme("e2m1", 16, "e4m3", second="f32")
    scales = np.ones((2, 2), np.uint8).view(numpy_dtype("F8_E4M3"))
    packed = QTensor(np.zeros((2, 16), np.uint8), scales, scheme, second=np.array([[np.nan]], np.float32))
    assert nonfinite(packed, "BF16") == 1


@pytest.mark.parametrize("kind", STRUCTS)
@pytest.mark.parametrize("bad", [0x7C00, 0xFC00, 0x7E01, 0xFFFF])
def test_scales_in_structs_of_ggml_count(kind: str, bad: int) -> None:
    """Those bytes, and no others, make what the block decodes to NaN or infinite."""
    elems, nbytes = STRUCTS[kind]
    blocks = np.random.default_rng(0).integers(1, 255, (3, 2, nbytes), np.uint8)
    for at in STRUCT_HALVES[kind]:
        blocks[..., at : at + 2] = np.frombuffer(np.array([0xFBFF], "<u2").tobytes(), np.uint8)  # -65504, the largest
    scheme = Scheme(kind, elems, "inside")

    def counted() -> int:
        return nonfinite(QTensor(blocks.reshape(3, 2 * nbytes), None, scheme), "BF16")

    assert counted() == 0
    assert np.isfinite(decode(kind.upper(), blocks.reshape(3, -1), elems, nbytes)).all()
    for n, at in enumerate(STRUCT_HALVES[kind]):
        blocks[1, 0, at : at + 2] = np.frombuffer(np.array([bad], "<u2").tobytes(), np.uint8)
        assert counted() == n + 1
        values = decode(kind.upper(), blocks.reshape(3, -1), elems, nbytes)
        assert not np.isfinite(values[1, :elems]).all()
        assert np.isfinite(values[1, elems:]).all()


def test_minima_count_as_scales_do() -> None:
    scheme = Scheme("uint4", 32, "f16", zero="min_f16")
    scales, minima = np.ones((2, 1), np.float16), np.array([[np.inf], [1.0]], np.float16)
    assert nonfinite(QTensor(np.zeros((2, 16), np.uint8), scales, scheme, zeros=minima), "BF16") == 1


def test_a_run_says_what_it_wrote_and_so_does_one_that_takes_it_over(tmp_path: Path) -> None:
    source, name = shutil.copytree(two_layers.folder(), tmp_path / "source"), "model.layers.1.input_layernorm.weight"
    tensors = load_file(source / "model.safetensors")
    tensors[name][[3, 5]] = np.nan, -np.inf
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    typed = ["+model=gpt_oss", f"model.source={source}", "quant=none", "flow=convert", f"paths.outputs={tmp_path}"]
    for run in ("first", "second"):
        report = pipeline.run([*typed, f"paths.run={tmp_path / run}"])
        assert report.nonfinite == [{"name": name, "encoding": "BF16", "count": 2}]
        assert "Warning: NaN or infinities, written as they are" in [table.title for table in tables(report)]
    assert report.chunks["reused"] == report.chunks["all"]
    page = pipeline.report.html(pipeline.runs(tmp_path), tmp_path / "page.html").read_text()
    assert f"NaN or infinities were written as they are, 2 of values or scales: {name}" in page

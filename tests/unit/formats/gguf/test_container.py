"""The GGUF container against the `gguf` package, in both directions, and what a folder may hold."""

import logging

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

from pipeline.errors import PlanError, SourceError
from pipeline.tensors.spec import TensorSpec, numpy_dtype
from plugins.formats.gguf.file import GgufContainer
from plugins.formats.gguf.types import GGML, PLAIN, stored_shape
from plugins.formats.safetensors.container import SafeTensors

KV = {
    "general.architecture": ("string", "llama"),
    "a.u8": ("uint8", 255),
    "a.i8": ("int8", -128),
    "a.u16": ("uint16", 65535),
    "a.i16": ("int16", -32768),
    "a.u32": ("uint32", 2**32 - 1),
    "a.i32": ("int32", -(2**31)),
    "a.u64": ("uint64", 2**64 - 1),
    "a.i64": ("int64", -(2**63)),
    "a.f32": ("float32", 9.999999747378752e-06),
    "a.f64": ("float64", 0.1),
    "a.true": ("bool", True),
    "a.false": ("bool", False),
    "a.text": ("string", "Ġ naïve 日本 \n"),
    "a.strings": ("array:string", ["", "a b", "🦙"]),
    "a.numbers": ("array:int32", [1, -2, 3]),
    "a.floats": ("array:float32", [0.5, -1.25]),
    "a.bools": ("array:bool", [True, False]),
}


def leaf_of(kind, shape, seed=0):
    """(ggml type, bytes of a leaf whose values have `shape`)"""
    stored = stored_shape(kind, shape)
    rng = np.random.default_rng(seed)
    if kind in PLAIN:
        return rng.integers(0, 100, stored).astype(numpy_dtype(kind))
    return rng.integers(0, 256, stored, dtype=np.uint8)


TENSORS = {f"t.{k.lower()}": (k, leaf_of(k, (3, 5, 2 * GGML[k].block))) for k in GGML} | {
    "vector": ("F32", leaf_of("F32", (7,))),
    "matrix": ("Q4_1", leaf_of("Q4_1", (9, 64))),
    "four": ("F16", leaf_of("F16", (2, 3, 4, 5))),
}


def write(folder, tensors=TENSORS, kv=KV, most=None, stem="model"):
    container = GgufContainer(stem)
    leaves = {n: TensorSpec(a.shape, k if k in PLAIN else "U8") for n, (k, a) in tensors.items()}
    layout = container.layout(leaves, {"gguf": {"kv": kv, "types": {n: k for n, (k, _) in tensors.items()}}}, most)
    container.begin(folder, layout)
    for name, (_, array) in tensors.items():
        container.write(folder, layout, name, (), array)
    return layout


def test_the_package_reads_what_we_write(tmp_path):
    layout = write(tmp_path)
    assert [f.name for f in layout.files] == ["model.gguf"]
    assert (tmp_path / "model.gguf").stat().st_size == layout.nbytes
    reader = GGUFReader(tmp_path / "model.gguf")
    fields = {n: f for n, f in reader.fields.items() if not n.startswith("GGUF.")}
    assert list(fields) == list(KV)
    for name, (kind, value) in KV.items():
        outer, _, inner = kind.partition(":")
        assert fields[name].contents() == value
        assert [t.name.lower() for t in fields[name].types][:2] == [outer, *([inner] if inner else [])]
    assert [t.name for t in reader.tensors] == list(TENSORS)
    for t in reader.tensors:
        kind, array = TENSORS[t.name]
        assert t.tensor_type.name == kind
        assert t.data_offset % 32 == 0
        assert t.data.tobytes() == array.tobytes()
        values = array.shape if kind in PLAIN else gguf.quant_shape_from_byte_shape(array.shape, t.tensor_type)
        assert tuple(t.shape.tolist()) == values[::-1]


def test_we_read_what_the_package_writes(tmp_path):
    path = tmp_path / "theirs.gguf"
    writer = GGUFWriter(path, "llama")
    for name, (kind, value) in list(KV.items())[1:]:
        outer, _, inner = kind.partition(":")
        writer.add_key_value(name, value, GGUFValueType[outer.upper()], GGUFValueType[inner.upper()] if inner else None)
    for name, (kind, array) in TENSORS.items():
        raw = array if kind != "BF16" else array.view(np.uint8)
        writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    leaves = GgufContainer().open(path)
    told = leaves.config()["gguf"]
    assert told == {"kv": KV, "types": {n: k for n, (k, _) in TENSORS.items()}}
    assert list(leaves.specs) == list(TENSORS)
    for name, (_, array) in TENSORS.items():
        got = leaves.read(name)
        assert got.dtype == array.dtype
        assert got.shape == array.shape
        assert got.tobytes() == array.tobytes()
    write(tmp_path / "ours", stem="theirs")
    assert (tmp_path / "ours" / "theirs.gguf").read_bytes() == path.read_bytes()


def test_what_we_write_we_read(tmp_path):
    write(tmp_path)
    leaves = GgufContainer().open(tmp_path)
    assert leaves.config()["gguf"]["kv"] == KV
    box = (slice(1, 3), slice(2, 4))
    for name, (_, array) in TENSORS.items():
        if array.ndim == 3:
            assert leaves.read(name, box).tobytes() == array[box].tobytes()


@pytest.mark.parametrize("most", [2500, 4000, 10_000])
def test_a_split_set(most, tmp_path):
    """Files of a bounded size, as `gguf-split` of llama.cpp makes them; any of them opens all."""
    layout = write(tmp_path, most=most)
    assert len(layout.files) > 1
    for i, f in enumerate(layout.files):
        assert f.name == f"model-{i + 1:05d}-of-{len(layout.files):05d}.gguf"
        held = [n for n, p in layout.places.items() if p.file == f.name]
        assert f.nbytes <= most or len(held) == 1
        fields = GGUFReader(tmp_path / f.name).fields
        assert fields["split.no"].contents() == i
        assert fields["split.count"].contents() == len(layout.files)
        assert fields["split.tensors.count"].contents() == len(TENSORS)
        assert ("a.text" in fields) == (i == 0)
    for source in (tmp_path, tmp_path / layout.files[-1].name):
        leaves = GgufContainer().open(source)
        assert list(leaves.specs) == list(TENSORS)
        assert len(leaves.paths) == len(layout.files)
        assert all(leaves.read(n).tobytes() == a.tobytes() for n, (_, a) in TENSORS.items())
    (tmp_path / layout.files[1].name).unlink()
    with pytest.raises(SourceError, match=r"model-00002-of-\d{5}\.gguf is missing"):
        GgufContainer().open(tmp_path)


def test_a_split_set_that_does_not_agree(tmp_path):
    layout = write(tmp_path, most=4000)
    names = [f.name for f in layout.files]
    (tmp_path / names[0]).write_bytes((tmp_path / names[1]).read_bytes())
    with pytest.raises(SourceError, match=r"split\.no is 1, its name says 0"):
        GgufContainer().open(tmp_path)


def test_a_folder_holds_one_model(tmp_path):
    assert not GgufContainer().recognizes(tmp_path)
    with pytest.raises(SourceError, match="no file"):
        GgufContainer().open(tmp_path)
    write(tmp_path)
    assert GgufContainer().recognizes(tmp_path)
    assert GgufContainer().recognizes(tmp_path / "model.gguf")
    assert not SafeTensors().recognizes(tmp_path)
    assert not SafeTensors().recognizes(tmp_path / "model.gguf")
    write(tmp_path, stem="other")
    with pytest.raises(SourceError, match=r"2 models \(model\.gguf, other\.gguf\); name the one to open"):
        GgufContainer().open(tmp_path)


def test_what_cannot_be_written():
    leaves = {
        "n" * 64: TensorSpec((3,), "F32"),
        "five": TensorSpec((1, 1, 1, 1, 1), "F32"),
        "half": TensorSpec((2, 20), "U8"),
        "wrong": TensorSpec((2, 18), "F16"),
        "untyped": TensorSpec((2,), "F32"),
        "fp8": TensorSpec((2,), "F8_E4M3"),
    }
    types = {"n" * 64: "F32", "five": "F32", "half": "Q8_0", "wrong": "Q4_0", "fp8": "F8_E4M3"}
    with pytest.raises(PlanError) as why:
        GgufContainer().layout(leaves, {"gguf": {"kv": KV, "types": types}}, None)
    assert [p.where for p in why.value.problems] == list(leaves)
    with pytest.raises(PlanError, match="only a GGUF dialect makes"):
        GgufContainer().layout({}, {"format": "pt"}, None)


def test_the_header_is_not_logged_about(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        write(tmp_path)
    assert not caplog.records

"""Folders of .npy files: NumPy and JAX read what we write, we read what they write, and nothing else gets in."""

import io
import json
import pickle
import re

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pipeline.errors import PlanError, SourceError
from pipeline.tensors.scheme import MXFP4
from pipeline.tensors.spec import DTYPE_BITS, TensorSpec, numpy_dtype
from plugins.formats.common.boxes import held_shape
from plugins.formats.npy.container import Npy, file_stems
from tests.cases.hostile.npy_files import ALLOWED, FILES, GOOD

LEAVES = {
    "scalar": TensorSpec((), "F64"),
    "empty": TensorSpec((0, 3), "I16"),
    "odd rows": TensorSpec((2, 3), "F4"),
    "a/b\\c:ü.weight": TensorSpec((11,), "BF16"),
    **{f"all.{d}": TensorSpec((3, 8, n), d) for n, d in zip(range(4, 200, 4), DTYPE_BITS, strict=False)},
}


def values(name, spec):
    data = np.random.default_rng(len(name)).bytes(spec.nbytes)
    return np.frombuffer(data, numpy_dtype(spec.dtype)).reshape(held_shape(spec))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("npy")
    layout = Npy().layout(LEAVES, {"epoch": 3, "who": ["me"]}, 100)
    Npy().begin(folder, layout)
    for name, spec in LEAVES.items():
        Npy().write(folder, layout, name, (), values(name, spec))
    return folder, layout


def test_we_read_what_we_write(written):
    folder, layout = written
    leaves = pickle.loads(pickle.dumps(Npy().open(folder)))
    assert list(leaves.specs.items()) == list(LEAVES.items())
    assert leaves.metadata == {"epoch": 3, "who": ["me"]}
    assert leaves.paths == tuple(folder / f.name for f in layout.files)
    for name, spec in LEAVES.items():
        got = leaves.read(name)
        assert (got.dtype, got.shape) == (numpy_dtype(spec.dtype), held_shape(spec))
        assert got.tobytes() == values(name, spec).tobytes()
        assert Npy().read_back(folder, layout, name, ()).tobytes() == got.tobytes()
    assert {p.name for p in folder.iterdir()} == {f.name for f in layout.files} | {"metadata.json"}


@pytest.mark.parametrize("name", LEAVES)
def test_numpy_reads_the_bytes(name, written):
    """As its own dtype where NumPy has one; float8 and bfloat16 as void of their width; data aligned to 64."""
    folder, layout = written
    place, spec = layout.places[name], LEAVES[name]
    got = np.load(folder / place.file, allow_pickle=False)
    dtype = numpy_dtype(spec.dtype)
    assert got.dtype == (dtype if dtype.isbuiltin == 1 else np.dtype(f"V{dtype.itemsize}"))
    assert got.shape == held_shape(spec)
    assert got.tobytes() == values(name, spec).tobytes()
    assert place.offset % 64 == 0


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "U8", "BOOL", "F8_E4M3"])
def test_jax_reads_the_values(dtype, written):
    """bfloat16 comes back as bfloat16; float8 comes back as opaque bytes that a view turns into itself."""
    folder, layout = written
    place = layout.places[f"all.{dtype}"]
    got = jnp.load(folder / place.file)
    if dtype == "F8_E4M3":
        assert got.dtype == np.dtype("V1")
        got = np.asarray(got).view(ml_dtypes.float8_e4m3fn)
    assert got.dtype == numpy_dtype(dtype)
    assert np.asarray(got).tobytes() == values(f"all.{dtype}", place.spec).tobytes()


def test_headers_are_the_bytes_numpy_writes(written):
    folder, layout = written
    for name, spec in LEAVES.items():
        array = values(name, spec)
        if array.dtype.isbuiltin == 1 or spec.dtype == "BF16":
            buffer = io.BytesIO()
            np.save(buffer, array)
            assert (folder / layout.places[name].file).read_bytes() == buffer.getvalue()


def test_plain_folder(tmp_path):
    """Without metadata.json: names are stems, dtypes are NumPy's, `V2` is bfloat16 as jax.numpy.load takes it."""
    arrays = {
        "a.b": np.arange(15, dtype=np.float32).reshape(3, 5),
        "half": np.arange(7).astype(np.float16),
        "brain": np.arange(7).astype(ml_dtypes.bfloat16),
        "flag": np.array(True),
        "long": np.arange(6).reshape(1, 2, 3),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    leaves = Npy().open(tmp_path)
    assert {n: s.dtype for n, s in leaves.specs.items()} == {
        "a.b": "F32", "brain": "BF16", "flag": "BOOL", "half": "F16", "long": "I64",
    }  # fmt: skip
    for name, array in arrays.items():
        np.testing.assert_array_equal(leaves.read(name), array, strict=True)
    np.testing.assert_array_equal(leaves.read("long", (slice(0, 1), slice(1, 2))), arrays["long"][:, 1:2])


@pytest.mark.parametrize("case", FILES)
def test_refused_with_file_and_reason(case, tmp_path):
    data, expected = FILES[case]
    (tmp_path / f"{case}.npy").write_bytes(data)
    with pytest.raises(SourceError) as caught:
        Npy().open(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/{case}.npy: ")
    assert expected in str(caught.value)


@pytest.mark.parametrize("case", [*ALLOWED, "good"])
def test_allowed(case, tmp_path):
    (tmp_path / "x.npy").write_bytes((ALLOWED | {"good": GOOD})[case])
    leaves = Npy().open(tmp_path)
    assert leaves.read("x").tobytes() == bytes(range(24))
    np.testing.assert_array_equal(leaves.read("x"), np.load(tmp_path / "x.npy"), strict=True)


def test_every_cut_of_a_good_file_is_refused(tmp_path):
    for n in range(len(GOOD)):
        (tmp_path / "x.npy").write_bytes(GOOD[:n])
        with pytest.raises(SourceError, match=r"/x\.npy: "):
            Npy().open(tmp_path)


ENTRY = {"file": "x.npy", "dtype": "F32", "shape": [2, 3]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"format": "other"}, "format 'other' version 1; 'weightmill-npy' version 1 is supported"),
        ({"version": 2}, "format 'weightmill-npy' version 2;"),
        ({"tensors": []}, "tensors and metadata must be objects"),
        ({"metadata": 1}, "tensors and metadata must be objects"),
        ({"tensors": {"a": {**ENTRY, "file": "../x.npy"}}}, "file '../x.npy' is not the name of a .npy file"),
        ({"tensors": {"a": {**ENTRY, "file": "/x.npy"}}}, "file '/x.npy' is not the name of a .npy file"),
        ({"tensors": {"a": {**ENTRY, "file": "x\0.npy"}}}, "is not the name of a .npy file"),
        ({"tensors": {"a": {**ENTRY, "file": 3}}}, "file 3 is not the name of a .npy file"),
        ({"tensors": {"a": {**ENTRY, "file": "y.npy"}}}, "y.npy: cannot be opened: No such file"),
        ({"tensors": {"a": ENTRY, "b": ENTRY}}, "file 'x.npy' is given to more than one tensor"),
        ({"tensors": {"a": {**ENTRY, "more": 1}}}, "tensor 'a': must have exactly the fields file, dtype and shape"),
        ({"tensors": {"a": {**ENTRY, "dtype": "F33"}}}, "dtype 'F33' and shape [2, 3] are not a dtype and a shape"),
        ({"tensors": {"a": {**ENTRY, "shape": [2, True]}}}, "are not a dtype and a shape"),
        ({"tensors": {"a": {**ENTRY, "shape": [3, 2]}}}, "x.npy: holds <f4[2, 3]; metadata.json says F32[3, 2]"),
        ({"tensors": {"a": {**ENTRY, "dtype": "I32"}}}, "x.npy: holds <f4[2, 3]; metadata.json says I32[2, 3]"),
    ],
)
def test_metadata_refused(change, expected, tmp_path):
    (tmp_path / "x.npy").write_bytes(GOOD)
    index = {"format": "weightmill-npy", "version": 1, "tensors": {"a": ENTRY}, "metadata": {}}
    (tmp_path / "metadata.json").write_text(json.dumps(index))
    assert Npy().open(tmp_path).read("a").tobytes() == bytes(range(24))
    (tmp_path / "metadata.json").write_text(json.dumps(index | change))
    with pytest.raises(SourceError, match=re.escape(expected)):
        Npy().open(tmp_path)


def test_not_a_folder_of_arrays(tmp_path):
    with pytest.raises(SourceError, match=r"no metadata.json and no .npy file in the folder"):
        Npy().open(tmp_path)
    with pytest.raises(SourceError, match=r"/x: not a folder"):
        Npy().open(tmp_path / "x")
    assert not Npy().recognizes(tmp_path)
    (tmp_path / "x.npy").write_bytes(GOOD)
    assert Npy().recognizes(tmp_path)


NAMES = [
    "model.layers.0.weight", "a/b", "a\\b", "a:b", "A", "a", "%41", "a%2Fb", "", ".", "..", ".hidden", "CON", "nul.txt",
    "ü" * 3, "x" * 300, "x" * 299 + "y", "X" * 300, "tab\t", "~", "a~b", "metadata.json", " ", "-rf",
]  # fmt: skip


def test_file_names_are_safe_unique_and_stable():
    stems = dict(zip(NAMES, file_stems(NAMES), strict=True))
    assert len({s.lower() for s in stems.values()}) == len(NAMES)
    for stem in stems.values():
        assert re.fullmatch(r"[A-Za-z0-9_%~-][A-Za-z0-9._%~-]{0,200}", stem)
    assert stems["model.layers.0.weight"] == "model.layers.0.weight"
    assert stems["a/b"] == "a%2Fb"
    assert stems["a:b"] == "a%3Ab"
    assert re.fullmatch(r"A~[0-9a-f]{16}", stems["A"])
    assert re.fullmatch(r"CON~[0-9a-f]{16}", stems["CON"])
    assert file_stems(["A", "b"]) == ["A", "b"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [(TensorSpec((3, 32), "BF16", MXFP4), "is quantized"), (TensorSpec((3,), "F4"), "does not fill whole bytes")],
)
def test_layout_refuses(spec, message):
    with pytest.raises(PlanError, match=message):
        Npy().layout({"w": spec}, {}, None)

"""Images: IDX files as they are and compressed, what is wrong with them, and scikit-learn's digits."""

import gzip
import struct
from importlib.util import find_spec

import numpy as np
import pytest

from pipeline.errors import ConfigError, PlanError
from plugins.data import images
from plugins.data.images import Digits, Idx
from tests.cases.opened import opened

RNG = np.random.default_rng(0)
PICTURES = RNG.integers(0, 256, (40, 5, 4), np.uint8)
LABELS = RNG.integers(0, 3, 40).astype(np.uint8)


def idx(array):
    kind = {"u1": 0x08, "i4": 0x0C, "f4": 0x0D}[array.dtype.str[1:]]
    big = array.astype(array.dtype.newbyteorder(">"))
    return struct.pack(f">BBBB{array.ndim}i", 0, 0, kind, array.ndim, *array.shape) + big.tobytes()


def written(tmp_path, name, content):
    path = tmp_path / name
    raw = content if isinstance(content, bytes) else idx(content)
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return str(path)


def pair(tmp_path, pictures=PICTURES, labels=LABELS, end=""):
    return written(tmp_path, f"images{end}", pictures), written(tmp_path, f"labels{end}", labels)


def all_of(examples):
    return examples.batch(np.arange(len(examples)))


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("kind", ["u1", "i4", "f4"])
def test_images_of_mean_0_and_deviation_1(end, kind, tmp_path):
    data = Idx(*pair(tmp_path, PICTURES.astype(kind), end=end), classes=3)
    assert not data.check(None)
    splits = opened(data, tmp_path)
    batch = all_of(splits.train)
    expected = (PICTURES - PICTURES.mean()) / PICTURES.std()
    np.testing.assert_allclose(batch["inputs"], expected[..., None], atol=1e-5)
    assert batch["targets"].tolist() == LABELS.tolist()
    assert splits.train.specs == {n: (a.shape[1:], a.dtype.name) for n, a in batch.items()} == data.plan(None).specs
    assert splits.held_out is None
    assert data.plan(None).examples == 40


def test_mirrored(tmp_path):
    splits = opened(Idx(*pair(tmp_path), classes=3, mirrored=True, held_out=0.3), tmp_path)
    batch = all_of(splits.train)
    assert len(splits.train) == 2 * (40 - len(splits.held_out))
    np.testing.assert_array_equal(batch["inputs"][0::2, :, ::-1], batch["inputs"][1::2])
    assert (batch["targets"][0::2] == batch["targets"][1::2]).all()
    assert not np.array_equal(batch["inputs"][0::2], batch["inputs"][1::2])


def test_held_out_files_are_scaled_as_what_is_trained_on(tmp_path):
    given = {}
    for name, value in (("held_out_images", PICTURES // 2), ("held_out_labels", LABELS)):
        given[name] = written(tmp_path, name, value)
    splits = opened(Idx(*pair(tmp_path), classes=3, **given), tmp_path)
    expected = (PICTURES // 2 - PICTURES.mean()) / PICTURES.std()
    np.testing.assert_allclose(all_of(splits.held_out)["inputs"], expected[..., None], atol=1e-5)
    [same] = Idx(*pair(tmp_path), classes=3, **given | {"held_out_images": pair(tmp_path)[0]}).check(None)
    assert (same.where, "is trained on too" in same.message) == ("data.held_out_images", True)


BAD = {
    "labels out of range": (idx(PICTURES), idx(LABELS), 2, "allows 0 to 1"),
    "fewer labels": (idx(PICTURES), idx(LABELS[:-1]), 3, "has 39 labels for 40 images in images"),
    "cut off": (idx(PICTURES)[:-1], idx(LABELS), 3, "its header says 40×5×4, 800 bytes, and it is cut off: 799 bytes"),
    "longer": (idx(PICTURES) + b"\0", idx(LABELS), 3, "it is longer than that: 801 bytes"),
    "no IDX": (b"PNG nothing", idx(LABELS), 3, "is no IDX file: it begins with b'PNG '"),
    "half a header": (idx(PICTURES)[:9], idx(LABELS), 3, "its header says no sizes"),
    "labels of images": (idx(PICTURES), idx(PICTURES), 3, "labels are whole numbers in one dimension"),
    "images of labels": (idx(LABELS), idx(LABELS), 3, "images have two dimensions, or three with channels"),
    "empty": (b"", idx(LABELS), 3, "is empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_with_the_file(name, tmp_path):
    pictures, labels, classes, said = BAD[name]
    data = Idx(*pair(tmp_path, pictures, labels), classes=classes)
    (problem,) = data.check(None)
    assert said in problem.message
    assert str(tmp_path) in problem.where
    with pytest.raises(PlanError) as error:
        opened(data, tmp_path)
    assert error.value.problems == (problem,)


def test_labels_out_of_range_are_counted(tmp_path):
    labels = LABELS.copy()
    labels[[7, 9]] = 200
    (problem,) = Idx(*pair(tmp_path, labels=labels), classes=3).check(None)
    expected = "label 8 is 200; data.classes=3 allows 0 to 2, and 1 more are out of range"
    assert (problem.where, problem.message) == (f"{tmp_path}/labels", expected)


def test_compressed_and_cut_off(tmp_path):
    whole = gzip.compress(idx(PICTURES))
    (tmp_path / "images.gz").write_bytes(whole[:-20])
    labels = written(tmp_path, "labels", LABELS)
    with pytest.raises(Exception, match=r"images\.gz"):
        opened(Idx(str(tmp_path / "images.gz"), labels, classes=3), tmp_path)


def test_missing_files_and_options_that_cannot_be(tmp_path):
    pair(tmp_path)
    found = Idx(str(tmp_path / "imags"), str(tmp_path / "labels"), classes=3).check(None)
    assert "no such file; did you mean 'images'?" in found[0].message
    with pytest.raises(ConfigError, match="go together"):
        Idx("a", "b", held_out_images="c")
    with pytest.raises(ConfigError, match="one of them"):
        Idx("a", "b", held_out_images="c", held_out_labels="d", held_out=0.1)


@pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed")
def test_digits(tmp_path):
    from sklearn.datasets import load_digits

    data = Digits()
    splits = opened(data, tmp_path)
    parts = [all_of(e) for e in (splits.train, splits.held_out)]
    assert [len(p["targets"]) for p in parts] == [1429, 368]
    assert not data.check(None)
    theirs = load_digits()
    scale = splits.facts
    mine = sorted((p * scale["deviation"] + scale["mean"]).round().tolist() for x in parts for p in x["inputs"][..., 0])
    assert mine == sorted(theirs.images.tolist())
    assert np.concatenate([p["targets"] for p in parts]).tolist() != theirs.target.tolist()
    assert sorted(np.concatenate([p["targets"] for p in parts]).tolist()) == sorted(theirs.target.tolist())


def test_digits_without_the_package(monkeypatch, tmp_path):
    monkeypatch.setattr(images.importlib.util, "find_spec", lambda name: None)
    (problem,) = Digits().check(None)
    assert "pip install 'weightmill[data]'" in problem.message
    assert Digits().inputs() == ()
    with pytest.raises(PlanError, match="scikit-learn"):
        opened(Digits(), tmp_path)

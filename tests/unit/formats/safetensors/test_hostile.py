"""Every check of the safetensors reader: the message it gives, and whether the `safetensors` package agrees."""

import json
import os
import re

import pytest
from safetensors import SafetensorError, deserialize

from pipeline.errors import SourceError
from plugins.formats.safetensors.container import SafeTensors
from tests.cases.hostile.safetensors_files import FILES, GOOD, STRICTER, entry, raw


def package_accepts(data):
    try:
        deserialize(data)
    except SafetensorError:
        return False
    return True


def refusal(path):
    with pytest.raises(SourceError) as caught:
        SafeTensors().open(path)
    return str(caught.value)


@pytest.mark.parametrize("case", [*FILES, *STRICTER])
def test_refused_with_file_and_reason(case, tmp_path):
    data, expected = (FILES | STRICTER)[case]
    path = tmp_path / f"{case}.safetensors"
    path.write_bytes(data)
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert expected in message
    assert len(message) < 1000 + len(str(path))  # hostile text is quoted in part only


@pytest.mark.parametrize("case", FILES)
def test_package_refuses_too(case):
    assert not package_accepts(FILES[case][0])


@pytest.mark.parametrize("case", STRICTER)
def test_package_accepts_where_we_are_stricter(case):
    assert package_accepts(STRICTER[case][0])


def test_good_file_is_accepted(tmp_path):
    """The hostile files are this one with one thing wrong; were it refused, the tests above would prove nothing."""
    path = tmp_path / "good.safetensors"
    path.write_bytes(GOOD)
    leaves = SafeTensors().open(path)
    assert list(leaves.specs) == ["a", "b"]
    assert leaves.read("b").tobytes() == bytes(range(24, 34))
    assert package_accepts(GOOD)


def test_every_cut_of_a_good_file_is_refused(tmp_path):
    path = tmp_path / "cut.safetensors"
    for n in range(len(GOOD)):
        path.write_bytes(GOOD[:n])
        assert refusal(path).startswith(f"{path}: ")


@pytest.mark.parametrize("kind", ["missing", "folder_without", "pipe", "broken_link", "missing_folder"])
def test_not_a_file(kind, tmp_path):
    path = tmp_path / "x.safetensors"
    expected = f"{path}: cannot be opened: No such file"
    if kind == "folder_without":
        path.mkdir()
        expected = f"{path}: no *.safetensors file and no *.safetensors.index.json in the folder"
    elif kind == "pipe":
        os.mkfifo(path)  # a plain open() would wait for a writer for ever
        expected = f"{path}: not a regular file"
    elif kind == "broken_link":
        path.symlink_to("nowhere")
    elif kind == "missing_folder":
        path = tmp_path / "x" / "y.safetensors"
        expected = f"{path}: cannot be opened: No such file"
    assert expected in refusal(path)


ONE, TWO = raw({"a": entry()}, bytes(24)), raw({"b": entry("U8", (5, 7), 0, 35)}, bytes(35))
SHARDS = {"m-1.safetensors": ONE, "m-2.safetensors": TWO}
MAP = {"a": "m-1.safetensors", "b": "m-2.safetensors"}


def folder(path, files, weight_map=None, **more):
    path.mkdir()
    for name, data in files.items():
        (path / name).write_bytes(data)
    if weight_map is not None:
        (path / "m.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map, **more}))
    return path


INDEXES = {
    "up": ({**MAP, "b": "../m-2.safetensors"}, "file '../m-2.safetensors'; only files inside the folder are allowed"),
    "up_inside": ({**MAP, "b": "x/../../m-2.safetensors"}, "only files inside the folder are allowed"),
    "absolute": ({**MAP, "b": "/etc/passwd"}, "file '/etc/passwd'; only files inside the folder are allowed"),
    "backslash": ({**MAP, "b": "..\\m-2.safetensors"}, "only files inside the folder are allowed"),
    "nul": ({**MAP, "b": "m-2.safetensors\0"}, "only files inside the folder are allowed"),
    "empty_name": ({**MAP, "b": ""}, "file ''; only files inside the folder are allowed"),
    "dot": ({**MAP, "b": "."}, "only files inside the folder are allowed"),
    "linked_folder": ({**MAP, "b": "out/m-2.safetensors"}, "which a link leads outside the folder"),
    "number": ({**MAP, "b": 2}, "weight_map must map tensor names to file names"),
    "list": (["a", "b"], "weight_map must map tensor names to file names"),
    "missing_file": ({**MAP, "b": "m-3.safetensors"}, "m-3.safetensors: cannot be opened: No such file"),
    "not_in_file": (
        {**MAP, "c": "m-2.safetensors"},
        "tensor 'c' is said to be in m-2.safetensors, which does not hold it",
    ),
    "wrong_file": ({"a": "m-2.safetensors", "b": "m-1.safetensors"}, "does not hold it; m-1.safetensors does"),
    "not_in_index": ({"a": "m-1.safetensors"}, None),
}


@pytest.mark.parametrize("case", INDEXES)
def test_index_refused(case, tmp_path):
    weight_map, expected = INDEXES[case]
    outside = folder(tmp_path / "outside", SHARDS)
    files = SHARDS
    if case == "not_in_index":
        files = {"m-1.safetensors": raw({"a": entry(), "z": entry(begin=24, end=48)}, bytes(48))}
        expected = "tensor 'z' of m-1.safetensors is not in weight_map"
    path = folder(tmp_path / "model", files, weight_map)
    (path / "out").symlink_to(outside)
    message = refusal(path)
    assert expected in message
    assert str(path) in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", "expected a JSON object, got list"),
        ('{"weight_map": {"a": "m-1.safetensors", "a": "m-2.safetensors"}}', "duplicate key 'a'"),
        ('{"metadata": {}}', "weight_map must map"),
        ("{", "not JSON at character 1"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_index_text_refused(text, expected, tmp_path):
    path = folder(tmp_path / "model", SHARDS)
    (path / "m.safetensors.index.json").write_text(text)
    message = refusal(path)
    assert message.startswith(f"{path}/m.safetensors.index.json: ")
    assert expected in message


def test_same_tensor_in_two_shards(tmp_path):
    path = folder(tmp_path / "model", {"m-1.safetensors": ONE, "m-2.safetensors": ONE})
    assert "m-2.safetensors: tensor 'a' is in m-1.safetensors too" in refusal(path)


def test_missing_shard_without_an_index(tmp_path):
    path = folder(tmp_path / "model", {"m-00001-of-00003.safetensors": ONE, "m-00003-of-00003.safetensors": TWO})
    assert "m-00002-of-00003.safetensors is missing, and there is no index" in refusal(path)


def test_two_indexes_are_ambiguous_unless_one_is_the_model(tmp_path):
    path = folder(tmp_path / "model", SHARDS, MAP)
    (path / "other.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "m-1.safetensors"}}))
    assert re.search(r"2 indexes \(m\.\S+, other\.\S+\); name the one to open", refusal(path))
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": MAP}))
    assert list(SafeTensors().open(path).specs) == ["a", "b"]
    assert list(SafeTensors().open(path / "other.safetensors.index.json").specs) == ["a"]

"""Orbax checkpoints that are damaged, lie, or were changed: an error that names the place, never wrong values."""

import json
import os
import re
import shutil

import numpy as np
import orbax.checkpoint as ocp
import pytest

from pipeline.errors import SourceError
from pipeline.tensors.scheme import MXFP4
from plugins.formats.orbax import store
from plugins.formats.orbax.container import Orbax
from plugins.formats.orbax.pytree import Pytree
from plugins.formats.orbax.tree import describe
from tests.cases.quantized import quantized
from tests.unit.formats.orbax.test_container import save, write

TENSORS = {"w": quantized(MXFP4, (5, 6, 64)), "b.bias": np.arange(1, 25, dtype=np.float32).reshape(4, 6)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A checkpoint of ours, and Orbax's: a database, and folders."""
    root = tmp_path_factory.mktemp("hostile")
    write(root / "ours", TENSORS, chunk_nbytes=48)
    save(root / "database", TENSORS, custom_metadata=describe(TENSORS))
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False)
    save(root / "folders", TENSORS, handler, custom_metadata=describe(TENSORS))
    return root


@pytest.fixture
def copy(made, tmp_path):
    def of(kind):
        return shutil.copytree(made / kind, tmp_path / kind)

    return of


def read_all(folder):
    leaves = Orbax().open(folder)
    Pytree().decode(leaves.specs, leaves.config())
    return {name: leaves.read(name) for name in leaves.specs}


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def rekeyed(name):
    """`_METADATA` whose array `b.bias` has another name."""

    def change(content):
        entry = content["tree_metadata"].pop("('b.bias',)")
        entry["key_metadata"][0]["key"] = name
        content["tree_metadata"]["x"] = entry

    return lambda folder: edit(folder / "_METADATA", change)


def cut(name, nbytes):
    def change(folder):
        path = folder / name
        path.write_bytes(path.read_bytes()[:nbytes])

    return change


def dropped(name):
    return lambda folder: (folder / name).unlink()


def text(name, content):
    return lambda folder: (folder / name).write_text(content)


def array(**changes):
    return lambda folder: edit(folder / "b.bias/zarr.json", lambda c: c.update(changes))


def zarray(**changes):
    return lambda folder: edit(folder / "b.bias/.zarray", lambda c: c.update(changes))


def tree(key, value):
    return lambda folder: edit(folder / "_METADATA", lambda c: c.update({key: value}))


def entry(key, value):
    return lambda folder: edit(folder / "_METADATA", lambda c: c["tree_metadata"]["('b.bias',)"].update({key: value}))


def linked_outside(folder):
    shutil.move(folder / "b.bias", folder.parent / "elsewhere")
    os.symlink(folder.parent / "elsewhere", folder / "b.bias")


DATA = "b.bias/c/0/0"
CASES = {
    "no data": ("ours", dropped(DATA), r"b\.bias/c/0/0: cannot be opened"),
    "data cut": ("ours", cut(DATA, 100), r"b\.bias/c/0/0: has 100 bytes; F32\[4, 6\] as zarr.json describes it .*128"),
    "a byte more": ("ours", text(DATA, "x" * 129), "has 129 bytes"),
    "no zarr.json": ("ours", dropped("b.bias/zarr.json"), r"b\.bias/zarr\.json: cannot be opened"),
    "garbage zarr.json": ("ours", text("b.bias/zarr.json", "{"), r"b\.bias/zarr\.json: not JSON"),
    "a list for zarr.json": ("ours", text("b.bias/zarr.json", "[]"), r"b\.bias/zarr\.json: expected a JSON object"),
    "a huge shape": ("ours", array(shape=[1 << 60, 6]), "b.bias"),
    "a negative shape": ("ours", array(shape=[-4, 6]), "'b.bias': cannot be read"),
    "another dtype": ("ours", array(data_type="float64"), r"b\.bias/c/0/0: has 128 bytes; F64"),
    "an unknown dtype": ("ours", array(data_type="float7"), "'b.bias': cannot be read.*float7"),
    "a dtype without a name": ("ours", array(data_type="int4"), "'b.bias': cannot be read"),
    "no tree": ("ours", text("_METADATA", "{}"), "_METADATA: tree_metadata and custom_metadata must be objects"),
    "garbage tree": ("ours", text("_METADATA", '{"tree_metadata": '), "_METADATA: not JSON"),
    "a key twice": ("ours", text("_METADATA", '{"use_zarr3": true, "use_zarr3": false}'), "duplicate key"),
    "deep": ("ours", text("_METADATA", '{"a":' * 100_000), "_METADATA: nested too deeply"),
    "no key path": ("ours", entry("key_metadata", []), "_METADATA: .*is not a path of keys"),
    "no value": ("ours", entry("value_metadata", None), "_METADATA: .*are missing or malformed"),
    "a note that is none": ("ours", tree("custom_metadata", [1]), "must be objects"),
    "garbage note": ("ours", text("_CHECKPOINT_METADATA", "\xff"), "_CHECKPOINT_METADATA: not JSON"),
    "a text": ("ours", entry("value_metadata", {"value_type": "string"}), "'b.bias' is a text, not an array"),
    "up": ("ours", rekeyed("../elsewhere"), "'../elsewhere' lies outside the folder"),
    "absolute": ("ours", rekeyed("/etc"), "'/etc' lies outside the folder"),
    "nothing": ("ours", rekeyed(""), "'' lies outside the folder"),
    "a zero byte": ("ours", rekeyed("a\0b"), "lies outside the folder"),
    "a link outside": ("ours", linked_outside, "'b.bias' lies outside the folder"),
    "another's name": ("ours", rekeyed("w.codes"), r"'w\.codes' is the name of two key paths"),
    "garbage config": ("ours", text("config.json", "3"), "config.json: expected a JSON object"),
    "no chunk": ("folders", dropped("b.bias/0.0"), "'b.bias': .4, 6. in chunks of .4, 6. is 1 of them, 0 are there"),
    "chunk cut": ("folders", cut("b.bias/0.0", 9), "'b.bias': cannot be read"),
    "no .zarray": ("folders", dropped("b.bias/.zarray"), "'b.bias': cannot be read"),
    "garbage .zarray": ("folders", text("b.bias/.zarray", "{"), "'b.bias': cannot be read"),
    "a huge chunk": ("folders", zarray(chunks=[1 << 40, 6]), "'b.bias': its chunks decode to 26,388,279,066,624 bytes"),
    "many chunks": ("folders", zarray(shape=[1 << 40, 6]), "'b.bias': .* is 274,877,906,944 of them, 1 are there"),
    "no database": ("database", dropped("manifest.ocdbt"), r"'b\.bias': cannot be read"),
    "database cut": ("database", cut("manifest.ocdbt", 40), "cannot be read"),
    "not in the database": ("database", rekeyed("c.bias"), "'c.bias': cannot be read"),
    "a link outside, to Orbax's": ("folders", linked_outside, "'b.bias' lies outside the folder"),
}


@pytest.mark.parametrize(("kind", "change", "message"), CASES.values(), ids=CASES)
def test_damage_is_an_error_that_names_the_place(kind, change, message, copy):
    folder = copy(kind)
    assert read_all(folder).keys() == {"w.codes", "w.scales", "b.bias"}
    change(folder)
    with pytest.raises(SourceError, match=message) as why:
        read_all(folder)
    assert str(folder) in str(why.value)
    assert "source locations" not in str(why.value)


def test_a_database_whose_data_are_damaged(copy):
    """Every data file cut in the middle: what cannot be read is an error; the checksums of the database say so."""
    folder = copy("database")
    for path in folder.glob("d/*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(SourceError, match="cannot be read"):
        read_all(folder)


def test_a_chunk_that_may_be_missing_is_zeros(copy):
    """With `store_array_data_equal_to_fill_value` false, Orbax leaves out chunks of nothing but zeros."""
    folder = copy("folders")
    (folder / "b.bias/0.0").unlink()
    edit(folder / "_METADATA", lambda c: c.update(store_array_data_equal_to_fill_value=False))
    assert not read_all(folder)["b.bias"].any()


def test_a_chunk_larger_than_what_the_process_may_have(copy, monkeypatch):
    """The library asks for it all at once, and ends the process when it is not there."""
    monkeypatch.setattr(store, "limits", lambda: iter([(1 << 40, "a machine"), (95, "ulimit -v")]))
    with pytest.raises(SourceError, match=r"'b.bias': its chunks decode to 96 bytes .*; 95 are there \(ulimit -v\)"):
        Orbax().open(copy("folders"))


@pytest.mark.parametrize(("kind", "name"), [("ours", DATA), ("folders", "b.bias/0.0"), ("database", "manifest.ocdbt")])
def test_a_file_that_changes_or_goes_is_an_error(kind, name, copy):
    folder = copy(kind)
    leaves = Orbax().open(folder)
    os.utime(folder / name, ns=(1, 1))
    with pytest.raises(SourceError, match=f"{re.escape(name)}.*changed since it was opened"):
        leaves.read("b.bias")
    (folder / name).unlink()
    with pytest.raises(SourceError, match=re.escape(name)):
        leaves.read("b.bias")


@pytest.mark.parametrize("kind", ["ours", "folders", "database"])
def test_what_is_not_there_is_named_with_what_is(kind, made):
    leaves = Orbax().open(made / kind)
    with pytest.raises(SourceError, match=r"no tensor 'b\.bais'; did you mean 'b\.bias'"):
        leaves.read("b.bais")
    with pytest.raises(IndexError):
        leaves.read("b.bias", (slice(0, 5),))

"""Safetensors files as wholes: what is read equals what the `safetensors` package reads, and the reverse."""

import errno
import json
import logging
import os
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from safetensors import deserialize
from safetensors.numpy import save

from pipeline.errors import PlanError, SourceError, StorageError
from pipeline.tensors.scheme import MXFP4
from pipeline.tensors.spec import DTYPE_BITS, TensorSpec, numpy_dtype
from plugins.formats.common.boxes import held_shape
from plugins.formats.safetensors import container
from plugins.formats.safetensors.check import check_file
from plugins.formats.safetensors.container import SafeTensors
from tests.cases.hostile.safetensors_files import entry, raw

# Odd byte counts between wide elements, so that order and alignment matter; an empty leaf, a scalar, every dtype.
LEAVES = {
    "w.odd": TensorSpec((3, 5), "U8"),
    "w.wide": TensorSpec((2, 7), "F32"),
    "scalar": TensorSpec((), "F64"),
    "empty": TensorSpec((0, 3), "I16"),
    "odd rows": TensorSpec((2, 3), "F4"),
    'quote"\\ü\n': TensorSpec((11,), "BF16"),
    **{f"all.{d}": TensorSpec((3, 8, n), d) for n, d in zip(range(4, 200, 4), DTYPE_BITS, strict=False)},
}


# What safetensors.numpy 0.8 can write; it has no packed dtypes.
PACKAGE_DTYPES = [d for d in DTYPE_BITS if not d.startswith(("F4", "F6"))]


def values(name, spec):
    data = np.random.default_rng(len(name)).bytes(spec.nbytes)
    return np.frombuffer(data, numpy_dtype(spec.dtype)).reshape(held_shape(spec))


def write(folder, leaves=LEAVES, most=None, metadata=None, container=SafeTensors()):  # noqa: B008 (frozen)
    layout = container.layout(leaves, metadata or {}, most)
    container.begin(folder, layout)
    for name, spec in leaves.items():
        container.write(folder, layout, name, (), values(name, spec))
    return layout


@pytest.mark.parametrize("most", [None, 400])
def test_the_library_sees_what_was_laid_out(most, tmp_path):
    """Every dtype, an empty leaf, a scalar, in one file and in many; metadata, too."""
    layout = write(tmp_path, most=most, metadata={"format": "pt", "who": 'ü"'})
    SafeTensors().verify(tmp_path, layout)


DISAGREE = {
    "another dtype": (lambda head: head["all.F32"].update(dtype="I32"), r"'all.F32' was laid out as F32.* sees I32"),
    "another shape": (lambda head: head["w.wide"].update(shape=[7, 2]), r"F32\[2, 7\], the .* sees F32\[7, 2\]"),
    "another name": (lambda head: head.update(new=head.pop("scalar")), r"'new' was laid out as nothing.*\(2 of"),
    "places swapped": (lambda head: swap(head, "all.F32", "all.I32"), "lies elsewhere to the safetensors library"),
    "metadata": (lambda head: head["__metadata__"].update(who="else"), "safetensors library sees .*else"),
    "no such dtype": (
        lambda head: head["all.U8"].update(dtype="U7"),
        r"\(\d.*\) cannot open it: .*U7.*dtypes in it: BF16",
    ),
    "a gap": (lambda head: head.pop("scalar"), "cannot open it"),
}


def swap(head, *names):
    a, b = (head[n]["data_offsets"] for n in names)
    head[names[0]]["data_offsets"], head[names[1]]["data_offsets"] = b, a


@pytest.mark.parametrize("case", DISAGREE)
def test_what_the_library_sees_otherwise_stops_the_run(case, tmp_path):
    """A header that is another than we think, though it is the one that was laid out: a mistake of ours."""
    leaves = {n: s for n, s in LEAVES.items() if not n.startswith("all.")}
    leaves |= {f"all.{d}": TensorSpec((6,), d) for d in ("F32", "I32", "U8")}
    layout = write(tmp_path, leaves, metadata={"who": "we"})
    change, said = DISAGREE[case]
    [plan] = layout.files
    head = json.loads(plan.prefix[8:])
    change(head)
    prefix = raw(head)
    (tmp_path / plan.name).write_bytes(prefix + bytes(plan.nbytes - len(plan.prefix)))
    wrong = replace(plan, prefix=prefix, nbytes=len(prefix) + plan.nbytes - len(plan.prefix))
    if case == "metadata":  # what we think it says is what was laid out
        with pytest.raises(StorageError, match=said):
            check_file(tmp_path / plan.name, plan, layout.places)
        return
    with pytest.raises(StorageError, match=said):
        SafeTensors().verify(tmp_path, replace(layout, files=(wrong,)))


def test_verifying_reads_no_data(tmp_path):
    """A file of a terabyte, all hole."""
    layout = SafeTensors().layout({"w": TensorSpec((1 << 30, 256), "F32")}, {}, None)
    [plan] = layout.files
    with (tmp_path / plan.name).open("wb") as file:
        file.write(plan.prefix)
        file.truncate(plan.nbytes)
    SafeTensors().verify(tmp_path, layout)


def test_planning_does_not_import_the_library():
    said = "import sys, plugins.formats.safetensors.container, stages.export; assert 'safetensors' not in sys.modules"
    subprocess.run([sys.executable, "-c", said], check=True)


@pytest.mark.parametrize("most", [None, 2000, 400, 1])
def test_package_reads_what_we_write(most, tmp_path):
    layout = write(tmp_path, most=most)
    found = {}
    for plan in layout.files:
        data = (tmp_path / plan.name).read_bytes()
        assert len(data) == plan.nbytes
        found |= dict(deserialize(data))
    assert found.keys() == LEAVES.keys()
    for name, spec in LEAVES.items():
        assert (found[name]["dtype"], tuple(found[name]["shape"])) == (spec.dtype, spec.shape)
        assert bytes(found[name]["data"]) == values(name, spec).tobytes()


@pytest.mark.parametrize("most", [None, 2000])
def test_we_read_what_we_write(most, tmp_path):
    layout = write(tmp_path, most=most, metadata={"epoch": 3, "who": "me"})
    leaves = pickle.loads(pickle.dumps(SafeTensors().open(tmp_path)))
    assert dict(leaves.specs) == LEAVES
    assert leaves.metadata == {"format": "pt", "epoch": "3", "who": "me"}
    assert leaves.paths == tuple(tmp_path / f.name for f in layout.files)
    for name, spec in LEAVES.items():
        got = leaves.read(name)
        assert (got.dtype, got.shape) == (numpy_dtype(spec.dtype), held_shape(spec))
        assert got.tobytes() == values(name, spec).tobytes()
        assert SafeTensors().read_back(tmp_path, layout, name, ()).tobytes() == got.tobytes()


def test_we_read_what_the_package_writes(tmp_path):
    specs = {d: TensorSpec((3, n), d) for n, d in enumerate(PACKAGE_DTYPES, 4)}
    path = tmp_path / "x.safetensors"
    path.write_bytes(save({d: values(d, s) for d, s in specs.items()}, {"k": "v"}))
    leaves = SafeTensors().open(path)
    assert dict(leaves.specs) == specs
    assert leaves.metadata == {"k": "v"}
    for name, spec in specs.items():
        assert leaves.read(name).tobytes() == values(name, spec).tobytes()


@pytest.mark.parametrize("most", [None, 3000, 500])
def test_every_leaf_is_aligned_and_in_order_where_that_allows(most):
    layout = SafeTensors().layout(LEAVES, {}, most)
    for place in layout.places.values():
        assert place.offset % max(1, DTYPE_BITS[place.spec.dtype] // 8) == 0
    same = {f"x{i}": TensorSpec((3, 7 + i), "BF16") for i in range(9, 0, -1)}
    places = SafeTensors().layout(same, {}, None).places
    assert [n for n, _ in sorted(places.items(), key=lambda t: t[1].offset)] == list(same)


def test_files_stay_within_max_shard_bytes():
    leaves = {f"w{i:03d}": TensorSpec((17, i), "BF16") for i in range(1, 90)}
    layout = SafeTensors().layout(leaves, {"note": "x" * 50}, 4000)
    held = {f.name: [p for p in layout.places.values() if p.file == f.name] for f in layout.files}
    assert len(layout.files) > 9
    assert all(f.nbytes <= 4000 for f in layout.files)
    for one, two in zip(layout.files, layout.files[1:], strict=False):  # nor are they wasteful
        assert one.nbytes + held[two.name][0].spec.nbytes + 100 > 4000
    names = [f.name for f in layout.files]
    assert names[1] == f"model-00002-of-{len(names):05d}.safetensors"
    index = json.loads(layout.extra["model.safetensors.index.json"])
    assert index["metadata"]["total_size"] == sum(s.nbytes for s in leaves.values())
    assert index["weight_map"] == {n: p.file for n, p in layout.places.items()}


@pytest.mark.parametrize("most", [1 << 20, None])
def test_a_header_that_grows_too_large_ends_its_file(monkeypatch, most):
    """As a million small tensors have it; unless all are to be in one file."""
    monkeypatch.setattr(container, "MAX_HEADER_NBYTES", 2000)
    leaves = {f"w{i:03d}": TensorSpec((4,), "BF16") for i in range(200)}
    if most is None:
        with pytest.raises(PlanError, match="the format allows 2,000"):
            SafeTensors().layout(leaves, {}, most)
        return
    layout = SafeTensors().layout(leaves, {}, most)
    heads = [len(file.prefix) - 8 for file in layout.files]
    assert all(1500 < n <= 2000 for n in heads[:-1])
    assert len(heads) > 5
    assert list(layout.places) == list(leaves)


def test_headers_and_their_padding_count():
    """Two leaves of every size around the one from which they no longer fit in one file."""
    fit = []
    for n in range(120, 200):
        layout = SafeTensors().layout({"a": TensorSpec((n,), "U8"), "b": TensorSpec((170,), "U8")}, {}, 500)
        assert max(f.nbytes for f in layout.files) <= 500
        fit.append(len(layout.files) == 1)
    assert fit == sorted(fit, reverse=True)
    assert {*fit} == {True, False}


def test_header_order_need_not_be_file_order(tmp_path):
    path = tmp_path / "x.safetensors"
    header = {"z": entry(begin=24, end=48), "e": entry("U8", (0,), 24, 24), "a": entry()}
    path.write_bytes(raw(header, bytes(range(48))))
    leaves = SafeTensors().open(path)
    assert list(leaves.specs) == ["a", "e", "z"]
    assert leaves.read("z").tobytes() == bytes(range(24, 48))


def test_large_leaf_has_a_file_of_its_own():
    leaves = {"a": TensorSpec((3,), "U8"), "big": TensorSpec((5000,), "U8"), "z": TensorSpec((5,), "U8")}
    layout = SafeTensors(stem="w").layout(leaves, {}, 1000)
    assert [layout.places[n].file for n in leaves] == [f"w-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]


def test_no_leaves_is_a_file_too(tmp_path):
    write(tmp_path, {}, most=100)
    assert dict(SafeTensors().open(tmp_path).specs) == {}


@pytest.mark.parametrize(
    ("name", "spec", "message"),
    [
        ("__metadata__", TensorSpec((3,), "U8"), "cannot name a tensor"),
        ("\ud800", TensorSpec((3,), "U8"), "lone surrogate"),
        ("w", TensorSpec((3, 32), "BF16", MXFP4), "is quantized"),
        ("w", TensorSpec((3,), "F4"), "does not fill whole bytes"),
        ("w", TensorSpec((3,), "BF17"), "dtype 'BF17' is unknown; did you mean 'BF16'"),
    ],
)
def test_layout_refuses_all_at_once(name, spec, message):
    with pytest.raises(PlanError, match=message) as caught:
        SafeTensors().layout({"v": TensorSpec((5,), "F4"), name: spec}, {}, None)
    assert len(caught.value.problems) == 2


def test_begin_keeps_the_data_of_a_whole_file_and_clears_any_other(tmp_path):
    layout = write(tmp_path, most=3000)
    before = {f.name: (tmp_path / f.name).read_bytes() for f in layout.files}
    SafeTensors().begin(tmp_path, layout)
    assert before == {f.name: (tmp_path / f.name).read_bytes() for f in layout.files}
    plan = layout.files[1]
    os.truncate(tmp_path / plan.name, plan.nbytes - 1)
    SafeTensors().begin(tmp_path, layout)
    data = (tmp_path / plan.name).read_bytes()
    assert data == plan.prefix + bytes(plan.nbytes - len(plan.prefix))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG, errno.EOPNOTSUPP, errno.EINVAL])
def test_space_is_reserved_first(code, tmp_path, monkeypatch):
    """A full disk is an error that leaves no file; a file system that cannot reserve gets the size alone."""

    def refuse(fd, at, nbytes):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    if code in (errno.EOPNOTSUPP, errno.EINVAL):
        layout = write(tmp_path)
        assert (tmp_path / "model.safetensors").stat().st_size == layout.nbytes
    else:
        with pytest.raises(
            StorageError, match=r"model.safetensors: reserving [\d,]+ bytes: .* \([\d,]+ bytes are free"
        ):
            write(tmp_path)
        assert list(tmp_path.iterdir()) == []


def test_output_errors_are_storage_errors(tmp_path):
    layout = write(tmp_path / "out")
    file = tmp_path / "out" / "model.safetensors"
    (tmp_path / "f").touch()
    with pytest.raises(StorageError, match=r"f: making the folder: File exists"):
        SafeTensors().begin(tmp_path / "f", layout)
    os.truncate(file, len(layout.files[0].prefix))
    with pytest.raises(StorageError, match=r"model.safetensors: tensor 'w.wide': cut short"):
        SafeTensors().read_back(tmp_path / "out", layout, "w.wide", ())
    file.unlink()
    with pytest.raises(StorageError, match=r"model.safetensors: cannot be opened: No such file"):
        SafeTensors().write(tmp_path / "out", layout, "w.odd", (), values("w.odd", LEAVES["w.odd"]))


def test_output_is_not_written_through_a_link(tmp_path):
    """A folder of links into a download cache must not become the way to overwrite the cache."""
    (tmp_path / "blob").write_bytes(b"precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.safetensors").symlink_to(tmp_path / "blob")
    with pytest.raises(StorageError, match=r"model.safetensors: cannot be opened: it is a symbolic link"):
        write(tmp_path / "out")
    assert (tmp_path / "blob").read_bytes() == b"precious"


def test_source_that_changes_is_refused(tmp_path):
    write(tmp_path)
    path = tmp_path / "model.safetensors"
    leaves = SafeTensors().open(tmp_path)
    with pytest.raises(SourceError, match=r"no tensor 'w.odf'; did you mean 'w.odd'"):
        leaves.read("w.odf")
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(SourceError, match=r"model.safetensors: changed since it was opened"):
        leaves.read("w.odd")
    leaves = SafeTensors().open(tmp_path)
    os.truncate(path, status.st_size - 1)
    with pytest.raises(SourceError, match=rf"changed since it was opened: it had {status.st_size} bytes"):
        pickle.loads(pickle.dumps(leaves)).read("w.odd")
    path.unlink()
    with pytest.raises(SourceError, match=r"model.safetensors: cannot be opened: No such file"):
        leaves.read("w.odd")


def test_change_during_a_read_is_seen(tmp_path, monkeypatch):
    write(tmp_path)
    path = tmp_path / "model.safetensors"
    leaves = SafeTensors().open(tmp_path)
    preadv, status = os.preadv, path.stat()

    def meanwhile(fd, buffers, at):
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 5))
        return preadv(fd, buffers, at)

    monkeypatch.setattr(os, "preadv", meanwhile)
    with pytest.raises(SourceError, match=r"model.safetensors: changed since it was opened"):
        leaves.read("w.odd")


def test_file_cut_short_is_called_changed(tmp_path):
    write(tmp_path)
    leaves = SafeTensors().open(tmp_path)
    os.truncate(tmp_path / "model.safetensors", leaves.places["w.odd"].offset + 1)
    with pytest.raises(SourceError, match=r"model.safetensors: changed since it was opened"):
        leaves.read("w.odd")


def test_folder_of_links_into_a_cache(tmp_path):
    """As download caches lay snapshots out: names that are links to blobs elsewhere, without any suffix."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    layout = write(blobs, most=3000)
    snapshot.mkdir(parents=True)
    for name in [f.name for f in layout.files] + list(layout.extra):
        (blobs / name).rename(blobs / f"blob{hash(name)}")
        (snapshot / name).symlink_to(f"../../blobs/blob{hash(name)}")
    assert dict(SafeTensors().open(snapshot).specs) == LEAVES
    blob = (snapshot / layout.files[0].name).resolve()
    assert SafeTensors().recognizes(blob)
    assert SafeTensors().open(blob).read("w.odd").tobytes() == values("w.odd", LEAVES["w.odd"]).tobytes()


def test_files_without_an_index_and_files_beside_one(tmp_path):
    """All files count without an index (openai's gpt-oss folders have none); an index leaves the others out."""
    (tmp_path / "x.safetensors").write_bytes(raw({"b": entry()}, bytes(24)))
    (tmp_path / "y.safetensors").write_bytes(raw({"a": entry()}, bytes(24)))
    assert list(SafeTensors().open(tmp_path).specs) == ["b", "a"]
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "y.safetensors"}}))
    assert list(SafeTensors().open(tmp_path).specs) == ["a"]
    assert list(SafeTensors().open(tmp_path / "m.safetensors.index.json").specs) == ["a"]


def test_wrong_total_size_is_logged(tmp_path, caplog, monkeypatch):
    mine = logging.Logger("whatever else this process has done to loggers")
    mine.addHandler(caplog.handler)
    monkeypatch.setattr(container, "log", mine)
    (tmp_path / "y.safetensors").write_bytes(raw({"a": entry()}, bytes(24)))
    index = {"weight_map": {"a": "y.safetensors"}, "metadata": {"total_size": 25}}
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps(index))
    SafeTensors().open(tmp_path)
    assert "total_size is 25, the tensors have 24 bytes" in caplog.text


def test_recognizes(tmp_path):
    write(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "text").write_text("not a checkpoint")
    assert SafeTensors().recognizes(tmp_path / "a")
    assert SafeTensors().recognizes(tmp_path / "a" / "model.safetensors")
    assert not SafeTensors().recognizes(tmp_path / "b")
    assert not SafeTensors().recognizes(tmp_path / "text")
    assert not SafeTensors().recognizes(tmp_path / "none")


def test_boxes_may_be_written_in_any_order(tmp_path):
    spec = TensorSpec((6, 35), "I32")
    layout = SafeTensors().layout({"pad": TensorSpec((4,), "I32"), "w": spec}, {}, None)
    SafeTensors().begin(tmp_path, layout)
    want = np.arange(210, dtype=np.int32).reshape(6, 35)
    for rows, cols in [((3, 6), (20, 35)), ((0, 3), (0, 20)), ((3, 6), (0, 20)), ((0, 3), (20, 35))]:
        index = (slice(*rows), slice(*cols))
        SafeTensors().write(tmp_path, layout, "w", index, want[index])
    np.testing.assert_array_equal(SafeTensors().open(tmp_path).read("w"), want)


def test_opening_imports_no_framework():
    modules = "plugins.formats.safetensors.container, plugins.formats.npy.container"
    code = f"import sys, {modules}; print({{'jax', 'torch', 'dask'}} & {{*sys.modules}})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"

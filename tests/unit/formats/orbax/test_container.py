"""Orbax checkpoints: Orbax restores what we write, we read what Orbax saves, bit for bit and in every scheme."""

import json
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace

import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore as ts
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pipeline.errors import PlanError, SourceError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import ELEMENT_BITS, MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec, numpy_dtype
from pipeline.tensors.views import JoinedStore
from pipeline.testing.memory import cut, random_boxes, random_bytes, same, spec_of
from plugins.formats.orbax.container import Orbax
from plugins.formats.orbax.pytree import Pytree
from plugins.formats.orbax.store import TensorStoreLeaves
from plugins.formats.orbax.tree import abstract, describe
from plugins.formats.orbax.zarr import DATA_TYPES, banded, understood
from tests.cases.quantized import leaves_of, quantized

SCHEMES = {
    **{e: Scheme(e, 32, "e8m0") for e in ELEMENT_BITS if not e.startswith("uint")},
    **{e: Scheme(e, 32, "bf16", zero="int") for e in ELEMENT_BITS if e.startswith("uint")},
    "q4_1": Scheme("uint4", 32, "f16", zero="min_f16"),
    "nvfp4": Scheme("e2m1", 16, "e4m3", second="f32"),
    "nvfp4 inverse": Scheme("e2m1", 16, "e4m3", second="inverse_f32"),
    "nf4 double": Scheme("nf4", 64, "dynamic8", second="dynamic8"),
    "tiles": Scheme("e5m2", 32, "f32", block_rows=4),
    "tensor": Scheme("int8", 0, "f32", block_rows=0),
}


def model() -> dict[str, object]:
    """Every dtype and every scheme, stacks, vectors and scalars, zeros and NaNs."""
    rng = np.random.default_rng(0)
    plain = {f"of.{d.lower()}.weight": TensorSpec((2 + i, 3, 5 + i), d) for i, d in enumerate(DATA_TYPES)}
    plain |= {"scalar": TensorSpec((), "F32"), "vector": TensorSpec((1013,), "BF16"), "empty": TensorSpec((0, 4), "U8")}
    found = {n: random_bytes(s, s.shape, rng) for n, s in plain.items()}
    found["nothing.but.zeros"] = np.zeros((6, 7), ml_dtypes.bfloat16)
    found |= {f"layers.{i}.{n}": quantized(s, (3, 6, 192), i) for i, (n, s) in enumerate(SCHEMES.items())}
    return found


def write(folder, tensors, config=None, **options):
    """What an export does, at once."""
    binding = Pytree().encode({n: spec_of(v) for n, v in tensors.items()}, config or {})
    container = Orbax(**options)
    layout = container.layout(binding.leaves, binding.metadata, None)
    container.begin(folder, layout)
    for leaf, array in leaves_of(binding, tensors).items():
        container.write(folder, layout, leaf, (), array)
    return layout


def read(folder) -> JoinedStore:
    """What a load does."""
    leaves = pickle.loads(pickle.dumps(Orbax().open(folder)))
    return JoinedStore(leaves, Pytree().decode(leaves.specs, leaves.config()))


def save(folder, tree, handler=None, **more):
    with ocp.Checkpointer(handler or ocp.StandardCheckpointHandler()) as checkpointer:
        checkpointer.save(folder, tree, **more)


def equal_trees(a, b) -> bool:
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return jax.tree.structure(a) == jax.tree.structure(b) and all(same(np.asarray(x), np.asarray(y)) for x, y in leaves)


def without(tensors, *dtypes):
    """JAX has no 64-bit types unless asked for them, and restores them as 32-bit ones."""
    return {n: v for n, v in tensors.items() if isinstance(v, QTensor) or v.dtype not in map(numpy_dtype, dtypes)}


WIDE = ("F64", "I64", "U64")


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """A folder that we wrote, in several bands an array, and what is in it."""
    folder, tensors = tmp_path_factory.mktemp("orbax") / "model", model()
    write(folder, tensors, chunk_nbytes=200)
    return folder, tensors


# --- Orbax reads ours


def test_orbax_restores_the_arrays_without_being_told_anything(ours):
    folder, tensors = ours
    got = ocp.StandardCheckpointer().restore(folder)
    assert got.keys() == tensors.keys()
    for name, value in tensors.items():
        want = value.components if isinstance(value, QTensor) else {"": value}
        have = got[name] if isinstance(value, QTensor) else {"": got[name]}
        for component, array in want.items():
            assert same(np.asarray(have[component]), array), f"{name} {component}"


def test_orbax_restores_qtensors_in_jax(ours, tmp_path):
    _, tensors = ours
    tensors = without(tensors, *WIDE)
    write(tmp_path, tensors)
    target = abstract(tmp_path)
    got = ocp.StandardCheckpointer().restore(tmp_path, target)
    assert equal_trees(got, tensors)
    assert all(isinstance(a, jax.Array) for a in jax.tree.leaves(got))
    how = ocp.checkpoint_utils.construct_restore_args(target)
    again = ocp.PyTreeCheckpointer().restore(tmp_path, item=target, restore_args=how)
    assert equal_trees(again, tensors)
    assert all(isinstance(a, jax.Array) for a in jax.tree.leaves(again))


def test_what_jax_would_cut_to_32_bits_is_refused(tmp_path):
    write(tmp_path, {"ids": np.array([2**40 + 1])})
    with pytest.raises(ValueError, match=r"ids: is I64.*jax_enable_x64"):
        abstract(tmp_path)
    with jax.enable_x64(True):
        got = ocp.StandardCheckpointer().restore(tmp_path, abstract(tmp_path))
    assert int(got["ids"][0]) == 2**40 + 1


def test_orbax_restores_onto_the_devices_that_are_asked_for(tmp_path):
    """Experts over four devices, each reading its own bands."""
    tensors = {"w": quantized(MXFP4, (8, 6, 64)), "b": np.arange(24, dtype=np.float32).reshape(4, 6)}
    write(tmp_path, tensors, chunk_nbytes=6 * 32)
    mesh = Mesh(np.array(jax.devices()[:4]), ("expert",))

    def place(name, shape):
        return NamedSharding(mesh, PartitionSpec("expert" if len(shape) == 3 else None))

    got = ocp.StandardCheckpointer().restore(tmp_path, abstract(tmp_path, place))
    assert [s.data.shape for s in got["w"].codes.addressable_shards] == [(2, 6, 32)] * 4
    assert got["w"].scales.sharding == place("w.scales", (8, 6, 2))
    assert got["b"].sharding.is_fully_replicated
    assert equal_trees(got, tensors)


def test_a_reader_of_a_part_reads_that_part(tmp_path):
    """tensorstore asks for the index and the bands that hold the rows, of a tensor of 6 MiB."""
    array = np.random.default_rng(0).integers(0, 256, (3, 1024, 2048), dtype=np.uint8)
    layout = write(tmp_path, {"w": array}, chunk_nbytes=1 << 18)
    assert layout.places["w"].offset == 16 * 24
    metric = "/tensorstore/kvstore/file/bytes_read"
    stored = ts.open({"driver": "zarr3", "kvstore": f"file://{tmp_path}/w/"}).result()
    before = ts.experimental_collect_matching_metrics(metric)[0]["values"][0]["value"]
    got = stored[1, 130:250].read().result()
    after = ts.experimental_collect_matching_metrics(metric)[0]["values"][0]["value"]
    assert np.array_equal(got, array[1, 130:250])
    assert 0 < after - before < 2 << 18


# --- the files


@pytest.mark.parametrize("nbytes", [1, 7, 40, 1000, 1 << 30])
@pytest.mark.parametrize("shape", [(), (1,), (1013,), (0, 4), (4, 0), (1009, 3), (5, 6, 16), (3, 1, 7), (1, 13, 11, 3)])
def test_bands_are_the_array_in_c_order(shape, nbytes, tmp_path):
    """tensorstore reads what lies between index and end as the array; the description can be read again."""
    spec = TensorSpec(shape, "BF16")
    bands = banded(spec, nbytes)
    assert understood(json.loads(json.dumps(bands.metadata()))) == bands
    array = random_bytes(spec, shape, np.random.default_rng(0))
    path = tmp_path / bands.file
    path.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "zarr.json").write_text(json.dumps(bands.metadata()))
    path.write_bytes((bands.index() + array.tobytes()).ljust(bands.nbytes, b"\xff"))
    stored = ts.open({"driver": "zarr3", "kvstore": f"file://{tmp_path}/"}).result()
    assert same(np.asarray(stored.read().result()), array)


def test_bands_are_of_the_size_that_was_asked_for():
    big = banded(TensorSpec((32, 5760, 1440), "U8"), 4 << 20)
    assert big.band == (1, 2880, 1440)
    embedding = banded(TensorSpec((201_088, 2880), "BF16"), 4 << 20)
    assert 1 << 19 < embedding.band_nbytes <= 4 << 20
    assert embedding.nbytes - embedding.index_nbytes == embedding.spec.nbytes
    prime = banded(TensorSpec((1_000_003, 64), "U8"), 4 << 20)
    assert prime.band_nbytes <= 4 << 20
    assert prime.nbytes - prime.index_nbytes - prime.spec.nbytes < prime.band_nbytes
    inner = banded(TensorSpec((2, 1_000_003, 8), "U8"), 1 << 16)
    assert inner.band == (1, 1_000_003, 8), "rows that cannot be divided are not cut"


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [4, 7]},
        {"shape": [-1, 6]},
        {"shape": [True, 6]},
        {"data_type": "int4"},
        {"codecs": []},
        {"codecs": [{"name": "bytes"}]},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 3]}}},
        {"fill_value": 1},
        {"zarr_format": 2},
    ],
)
def test_only_our_own_layout_is_taken_for_ours(change):
    metadata = banded(TensorSpec((4, 6), "U8"), 12).metadata()
    assert understood(metadata) is not None
    assert understood({**metadata, **change}) is None


def test_bands_that_do_not_follow_each_other_are_left_to_tensorstore():
    bands = banded(TensorSpec((4, 6), "U8"), 12)
    for band in ((4, 3), (3, 6), (2, 3), (4, 12)):
        other = replace(bands, band=band)
        assert (understood(other.metadata()) is not None) is (band == (3, 6)), band
    stack = banded(TensorSpec((2, 5, 8), "U8"), 24)
    assert understood(replace(stack, band=(1, 1, 8)).metadata()) is not None
    assert understood(replace(stack, band=(1, 2, 8)).metadata()) is None, "a gap between the two matrices"


def test_equal_checkpoints_are_equal_files(ours, tmp_path):
    folder, tensors = ours
    write(tmp_path, tensors, chunk_nbytes=200)
    files = sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    assert files == sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file())
    assert all((folder / f).read_bytes() == (tmp_path / f).read_bytes() for f in files)


# --- we read ours, and Orbax's


def test_we_read_what_we_write(ours):
    folder, tensors = ours
    store = read(folder)
    assert list(store.specs) == list(tensors)
    for name, value in tensors.items():
        assert store.specs[name] == spec_of(value)
        assert same(store.read(name), value), name


HANDLERS = {
    "OCDBT, as by default": {},
    "OCDBT, zarr 3": {"use_zarr3": True},
    "zarr 2": {"use_ocdbt": False},
    "zarr 3": {"use_ocdbt": False, "use_zarr3": True},
}


@pytest.mark.parametrize("options", HANDLERS.values(), ids=HANDLERS)
def test_we_read_what_orbax_saves(options, ours, tmp_path):
    _, tensors = ours
    tensors = {n: v for n, v in tensors.items() if n != "empty"}  # which Orbax restores and does not save
    save(tmp_path / "model", tensors, ocp.PyTreeCheckpointHandler(**options), custom_metadata=describe(tensors))
    store = read(tmp_path / "model")
    assert isinstance(store.leaves, TensorStoreLeaves)
    assert store.specs == {n: spec_of(v) for n, v in tensors.items()}
    rng = np.random.default_rng(0)
    for name, value in tensors.items():
        assert same(store.read(name), value), name
        if not isinstance(value, QTensor):
            for box in random_boxes(spec_of(value), rng, 3):
                assert same(store.read(name, box), cut(value, box)), f"{name}{list(box)}"
    assert {p.name for p in store.leaves.paths} >= {"_METADATA", "_CHECKPOINT_METADATA"}
    says = {"use_ocdbt": "manifest.ocdbt", "zarr3": "zarr.json", "zarr": ".zarray"}
    how = "use_ocdbt" if options.get("use_ocdbt", True) else "zarr3" if options.get("use_zarr3") else "zarr"
    told = store.leaves.metadata_paths
    assert {p.name for p in told} == {"_METADATA", "_CHECKPOINT_METADATA", says[how]}
    assert how == "use_ocdbt" or len(told) == 2 + len(store.leaves.specs)


def test_describe_is_what_an_export_writes(ours):
    folder, tensors = ours
    assert read(folder).metadata == describe(tensors)


def test_a_step_of_a_manager_and_the_only_step_of_a_manager(tmp_path):
    tensors = {"w": quantized(MXFP4, (5, 64)), "b": np.arange(7, dtype=np.float32)}
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(3, args=ocp.args.StandardSave(tensors), custom_metadata=describe(tensors))
    for source in ("run", "run/3", "run/3/default"):
        assert Orbax().recognizes(tmp_path / source)
        assert same(read(tmp_path / source).read("w"), tensors["w"])
    assert not Orbax().recognizes(tmp_path), "a folder of runs is no checkpoint"
    shutil.copytree(tmp_path / "run/3", tmp_path / "run/4")
    with pytest.raises(SourceError, match=r"2 trees \(3/default, 4/default\); name the one to open"):
        Orbax().open(tmp_path / "run")


def test_a_note_in_the_tree_itself(tmp_path):
    tensors = {"w": quantized(SCHEMES["nvfp4"], (5, 64))}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        args = ocp.args.PyTreeSave(tensors, custom_metadata=describe(tensors, "F16"))
        checkpointer.save(tmp_path / "model", args=args)
    assert read(tmp_path / "model").specs["w"] == TensorSpec((5, 64), "F16", SCHEMES["nvfp4"])


def test_trees_that_are_not_flat(tmp_path):
    """Names are key paths joined by dots; what to restore into has the tree's own form."""
    tree = {
        "layers": [{"w": quantized(MXFP4, (5, 64), i), "n": np.full(1 + i, i, np.float32)} for i in range(11)],
        "head": {"w": quantized(SCHEMES["q4_1"], (7, 96)), "b": None, "more": {}},
        "step": np.int32(7),
    }
    save(tmp_path / "model", tree, custom_metadata={**describe(tree), "mine": 1})
    store = read(tmp_path / "model")
    assert same(store.read("layers.10.w"), tree["layers"][10]["w"])
    assert same(store.read("head.w"), tree["head"]["w"])
    assert store.specs["step"] == TensorSpec((), "I32")
    assert store.metadata["mine"] == 1
    target = abstract(tmp_path / "model")
    assert target["head"]["b"] is None
    assert equal_trees(ocp.StandardCheckpointer().restore(tmp_path / "model", target), tree)


def test_what_jax_changed_is_saved_and_read_again(tmp_path):
    """The round of a JAX program: restore ours, compute, save with Orbax's defaults, read."""
    tensors = {"w": quantized(MXFP4, (4, 6, 64)), "norm": np.arange(5, dtype=ml_dtypes.bfloat16)}
    write(tmp_path / "ours", tensors)
    params = ocp.StandardCheckpointer().restore(tmp_path / "ours", abstract(tmp_path / "ours"))
    params["norm"] = params["norm"] * 2
    save(tmp_path / "theirs", params, custom_metadata=describe(params))
    store = read(tmp_path / "theirs")
    assert same(store.read("w"), tensors["w"])
    assert same(store.read("norm"), tensors["norm"] * np.array(2, ml_dtypes.bfloat16))


def test_a_scheme_that_nobody_wrote_down_is_asked_for(tmp_path):
    save(tmp_path / "model", {"w": quantized(MXFP4, (5, 64)), "b": np.zeros(3)})
    with pytest.raises(PlanError, match=r"w: has codes and scales, and nothing says.*orbax.tree.describe"):
        read(tmp_path / "model")
    with pytest.raises(PlanError, match="nothing says in which scheme"):
        abstract(tmp_path / "model")


# --- the dialect's own refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2, "tensors": {}}, "version 2 with tensors dict; version 1 with an object is read"),
        ([], "version None"),
        ({"version": 1, "tensors": {"w": 3}}, "w: custom_metadata"),
        ({"version": 1, "tensors": {"w": {"dtype": "BF16", "scheme": {"element": "e2m1"}}}}, "exactly block_elems"),
        ("dtype", "dtype 'F99' is unknown"),
        ("element", "'e9m9' is unknown"),
        ("block", "w.scales: has shape .5, 2., expected .5, 4."),
        ("name", "v.codes: missing; custom_metadata says that it is quantized .allowed: w.\nw: has codes"),
    ],
)
def test_notes_that_do_not_fit_are_refused(change, message):
    leaves = {"w.codes": TensorSpec((5, 32), "U8"), "w.scales": TensorSpec((5, 2), "U8")}
    note = describe({"w": quantized(MXFP4, (5, 64))})["pytree"]
    assert Pytree().decode(leaves, {"pytree": note}).tensors["w"].spec == TensorSpec((5, 64), "BF16", MXFP4)
    entry = note["tensors"]["w"]
    if change == "dtype":
        entry["dtype"] = "F99"
    elif change == "element":
        entry["scheme"]["element"] = "e9m9"
    elif change == "block":
        entry["scheme"]["block_elems"] = 16
    elif change == "name":
        note["tensors"]["v"] = note["tensors"].pop("w")
    else:
        note = change
    with pytest.raises(PlanError, match=message):
        Pytree().decode(leaves, {"pytree": note})


def test_two_tensors_for_one_name_are_refused():
    specs = {"w": TensorSpec((5, 64), "BF16", MXFP4), "w.codes": TensorSpec((3,), "F32")}
    with pytest.raises(PlanError, match=r"w\.codes: is the name of a component of w too"):
        Pytree().encode(specs, {})


@pytest.mark.parametrize("name", ["", "a/b", "..", "_METADATA", "d", "x" * 256, "config.json"])
def test_names_that_cannot_be_folders_are_refused(name):
    with pytest.raises(PlanError, match=r"name of an array's folder|a folder's name has 255"):
        Orbax().layout({name: TensorSpec((3,), "F32"), "fine": TensorSpec((3,), "F32")}, {}, None)


def test_what_zarr_cannot_hold_is_refused():
    with pytest.raises(PlanError, match="dtype F6_E2M3 has no name in zarr"):
        Orbax().layout({"w": TensorSpec((4,), "F6_E2M3")}, {}, None)


def test_reading_needs_neither_jax_nor_tensorstore_before_it_must(tmp_path):
    """Ours without tensorstore; Orbax's without JAX."""
    write(tmp_path / "ours", {"w": np.arange(7, dtype=np.float32)})
    save(tmp_path / "theirs", {"w": np.arange(7, dtype=np.float32)})
    script = (
        "import sys; from pathlib import Path; from plugins.formats.orbax.container import Orbax\n"
        f"assert Orbax().open(Path({str(tmp_path / 'ours')!r})).read('w')[6] == 6\n"
        "assert 'tensorstore' not in sys.modules\n"
        f"assert Orbax().open(Path({str(tmp_path / 'theirs')!r})).read('w')[6] == 6\n"
        "assert 'jax' not in sys.modules and 'tensorstore' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""Views: a box of a view equals that box of the whole, whatever the leaf looks like; splitting undoes joining."""

import pickle
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from pipeline.errors import PlanError
from pipeline.tensors.binding import Binding, Bound, Part
from pipeline.tensors.blocks import component_box
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4
from pipeline.tensors.spec import TensorSpec, numpy_dtype
from pipeline.tensors.steps import Slice, Split, Transpose
from pipeline.tensors.views import JoinedStore, MappedStore, split, stored_leaves, stored_spec
from tests.cases.memory_store import MemoryStore, box_of, same, write_all

F32, BF16 = "F32", "BF16"
PACKED = (Part("w_blocks", "codes", (Split(16),)), Part("w_scales", "scales"))
BOUNDS = {
    "vector": Bound(TensorSpec((7,), BF16), (Part("vector"),)),
    "scalar": Bound(TensorSpec((), F32), (Part("scalar"),)),
    "matrix": Bound(TensorSpec((5, 11), F32), (Part("matrix"),)),
    "q": Bound(TensorSpec((6, 9), BF16), (Part("qkv"),)),
    "k": Bound(TensorSpec((2, 9), BF16), (Part("qkv", steps=(Slice(6),)),)),
    "v": Bound(TensorSpec((3, 9), BF16), (Part("qkv", steps=(Slice(8),)),)),
    "conv1d_a": Bound(TensorSpec((4, 10), F32), (Part("conv1d", steps=(Transpose(),)),)),
    "conv1d_b": Bound(TensorSpec((3, 10), F32), (Part("conv1d", steps=(Slice(4), Transpose())),)),
    "experts": Bound(TensorSpec((4, 6, 10), BF16), (Part("experts", steps=(Transpose(),)),)),
    "unfolded": Bound(TensorSpec((4, 12), F32), (Part("unfolded", steps=(Split(3),)),)),
    "both": Bound(TensorSpec((2, 12, 5), F32), (Part("both", steps=(Transpose(), Split(3))),)),
    "packed": Bound(TensorSpec((3, 5, 96), BF16, MXFP4), PACKED),
    "tied": Bound(TensorSpec((8, 3), F32), (Part("tied_a"), Part("tied_b"))),
}


def whole(name: str) -> Any:
    """The tensor itself, filled from its name."""
    spec = BOUNDS[name].spec
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if spec.scheme:
        arrays = {c: rng.integers(0, 256, s, dtype=np.uint8) for c, s in spec.scheme.components(spec.shape).items()}
        return QTensor(arrays["codes"], arrays["scales"], spec.scheme)
    return np.asarray(rng.standard_normal(spec.shape)).astype(numpy_dtype(spec.dtype))


BINDING = Binding(BOUNDS, stored_leaves(BOUNDS), {})


LEAVES = write_all(BINDING, whole)


@pytest.fixture(scope="module")
def joined() -> JoinedStore:
    return JoinedStore(MemoryStore(LEAVES, {"from": "memory"}), BINDING)


# What a box's bounds must be multiples of, per dimension: blocks, and groups of an unfolded dimension.
STEPS = {"packed": (1, 1, 32), "unfolded": (1, 3), "both": (1, 3, 1)}


def random_box(rng: np.random.Generator, name: str) -> tuple[slice, ...]:
    shape = BOUNDS[name].spec.shape
    box = []
    for n, step in zip(shape, STEPS.get(name, (1,) * len(shape)), strict=True):
        start, stop = sorted(int(x) * step for x in rng.integers(0, n // step + 1, 2))
        box.append(slice(start, stop))
    return tuple(box[: rng.integers(0, len(shape) + 1)])


def test_leaves_are_what_the_parts_say() -> None:
    shapes = {leaf: (spec.dtype, spec.shape) for leaf, spec in BINDING.leaves.items()}
    assert shapes == {
        "vector": ("BF16", (7,)),
        "scalar": ("F32", ()),
        "matrix": ("F32", (5, 11)),
        "qkv": ("BF16", (11, 9)),
        "conv1d": ("F32", (10, 7)),
        "experts": ("BF16", (4, 10, 6)),
        "unfolded": ("F32", (4, 4, 3)),
        "both": ("F32", (2, 5, 4, 3)),
        "w_blocks": ("U8", (3, 5, 3, 16)),
        "w_scales": ("U8", (3, 5, 3)),
        "tied_a": ("F32", (8, 3)),
        "tied_b": ("F32", (8, 3)),
    }


def test_layout_of_leaves() -> None:
    """Spelled out in NumPy, so that join and split cannot agree on something wrong."""
    leaf = LEAVES
    assert same(leaf["qkv"], np.concatenate([whole("q"), whole("k"), whole("v")]))
    assert same(leaf["conv1d"], np.concatenate([whole("conv1d_a"), whole("conv1d_b")]).T)
    assert same(leaf["experts"], whole("experts").transpose(0, 2, 1))
    assert same(leaf["unfolded"], whole("unfolded").reshape(4, 4, 3))
    assert same(leaf["both"], whole("both").transpose(0, 2, 1).reshape(2, 5, 4, 3))
    assert same(leaf["w_blocks"], whole("packed").codes.reshape(3, 5, 3, 16))
    assert same(leaf["tied_a"], leaf["tied_b"])


@pytest.mark.parametrize("name", BOUNDS)
def test_whole_tensor_comes_back(joined: JoinedStore, name: str) -> None:
    assert joined.specs[name] == BOUNDS[name].spec
    assert same(joined.read(name), whole(name))


@pytest.mark.parametrize("name", BOUNDS)
def test_random_boxes_equal_slices_of_the_whole(joined: JoinedStore, name: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(60):
        box = random_box(rng, name)
        assert same(joined.read(name, box), box_of(whole(name), box)), box


@pytest.mark.parametrize("name", [n for n in BOUNDS if n != "scalar"])
def test_writing_by_rows_in_any_order_equals_writing_whole(name: str) -> None:
    bound = BOUNDS[name]
    leaves = {p.leaf: np.zeros_like(LEAVES[p.leaf]) for p in bound.parts}
    for row in reversed(range(bound.spec.shape[0])):
        box = (slice(row, row + 1),)
        for leaf, leaf_box, array in split(bound, box, box_of(whole(name), box)):
            assert leaves[leaf][leaf_box].shape == array.shape
            leaves[leaf][leaf_box] = array
    assert same(JoinedStore(MemoryStore(leaves), BINDING).read(name), whole(name))


def test_only_the_box_is_read() -> None:
    store = MemoryStore(write_all(BINDING, whole))
    JoinedStore(store, BINDING).read("k", (slice(1, 2), slice(3, 5)))
    JoinedStore(store, BINDING).read("experts", (slice(2, 3), slice(1, 4)))
    JoinedStore(store, BINDING).read("packed", (slice(0, 1), slice(2, 3), slice(32, 96)))
    JoinedStore(store, BINDING).read("tied")
    row = (slice(0, 1), slice(2, 3))
    assert store.reads == [
        ("qkv", (slice(7, 8), slice(3, 5))),
        ("experts", (slice(2, 3), slice(0, 10), slice(1, 4))),
        ("w_blocks", (*row, slice(1, 3), slice(0, 16))),
        ("w_scales", (*row, slice(1, 3))),
        ("tied_a", (slice(0, 8), slice(0, 3))),
    ]


@pytest.mark.parametrize("last", [slice(0, 31), slice(1, 32), slice(16, 48), slice(32, 95)])
def test_a_cut_block_is_refused(joined: JoinedStore, last: slice) -> None:
    box = (slice(0, 1), slice(0, 1), last)
    with pytest.raises(IndexError, match="cuts a block of 32"):
        joined.read("packed", box)


@pytest.mark.parametrize("box", [(slice(0, 6),), (slice(-1, 2),), (slice(0, 4, 2),), (slice(0, 1),) * 3])
def test_a_box_outside_is_refused(joined: JoinedStore, box: tuple[slice, ...]) -> None:
    with pytest.raises(IndexError):
        joined.read("matrix", box)


def test_a_cut_group_is_refused() -> None:
    with pytest.raises(IndexError, match="cuts a group of 3"):
        split(BOUNDS["unfolded"], (slice(0, 4), slice(1, 3)), np.zeros((4, 2), np.float32))


def test_an_unknown_tensor_names_the_nearest(joined: JoinedStore) -> None:
    with pytest.raises(KeyError, match="did you mean 'matrix'"):
        joined.read("matrixx")


def test_a_wrong_value_is_refused() -> None:
    with pytest.raises(AssertionError, match="the spec promises"):
        split(BOUNDS["packed"], (), np.zeros((3, 5, 96), np.float32))
    with pytest.raises(AssertionError, match="the spec promises"):
        split(BOUNDS["matrix"], (), np.zeros((11, 5), np.float32))


def test_component_boxes() -> None:
    spec = TensorSpec((4, 128), BF16, MXFP4)
    box = (slice(1, 3), slice(32, 96))
    assert component_box(spec, "codes", box) == (slice(1, 3), slice(16, 48))
    assert component_box(spec, "scales", box) == (slice(1, 3), slice(1, 3))
    assert stored_spec(Part("x", "codes", (Split(16),)), spec) == TensorSpec((4, 4, 16), "U8")


def test_tensors_of_two_dtypes_cannot_share_a_leaf() -> None:
    bounds = {
        "a": Bound(TensorSpec((2, 3), BF16), (Part("x"),)),
        "b": Bound(TensorSpec((2, 3), F32), (Part("x", steps=(Slice(2),)),)),
    }
    with pytest.raises(PlanError, match="b: F32 cannot share x with tensors of BF16"):
        stored_leaves(bounds)


@pytest.mark.parametrize("row0", [1, 3])
def test_gaps_and_overlaps_are_bugs(row0: int) -> None:
    spec = TensorSpec((2, 3), BF16)
    with pytest.raises(AssertionError, match="x: parts fill 12 of"):
        stored_leaves({"a": Bound(spec, (Part("x"),)), "b": Bound(spec, (Part("x", steps=(Slice(row0),)),))})


def test_views_pickle(joined: JoinedStore) -> None:
    again = pickle.loads(pickle.dumps(MappedStore(joined, Negate())))
    assert again.specs == joined.specs
    assert again.metadata == {"from": "memory"}
    assert same(again.read("matrix", (slice(2, 4),)), -whole("matrix")[2:4])


@dataclass(frozen=True)
class Negate:
    """A transform that keeps specs."""

    def spec(self, name: str, spec: TensorSpec) -> TensorSpec:
        return spec

    def apply(self, name: str, value: np.ndarray, index: tuple[slice, ...]) -> np.ndarray:
        return -value


@dataclass(frozen=True)
class Pack:
    """A stand-in for a quantizer: matrices of whole blocks become zero codes whose scales count the box's rows."""

    def spec(self, name: str, spec: TensorSpec) -> TensorSpec:
        return TensorSpec(spec.shape, BF16, MXFP4) if name == "w" else spec

    def apply(self, name: str, value: np.ndarray, index: tuple[slice, ...]) -> object:
        if name != "w":
            return value
        rows, n = value.shape
        scales = np.repeat(np.arange(index[0].start, index[0].stop, dtype=np.uint8)[:, None], n // 32, axis=1)
        return QTensor(np.zeros((rows, n // 2), np.uint8), scales, MXFP4)


def test_mapped_store_gives_boxes_of_the_transformed_tensor() -> None:
    mapped = MappedStore(MemoryStore({"w": np.ones((6, 64), np.float32), "b": np.ones(6, np.float32)}), Pack())
    assert mapped.specs == {"w": TensorSpec((6, 64), BF16, MXFP4), "b": TensorSpec((6,), F32)}
    box = (slice(2, 5), slice(32, 64))
    assert same(mapped.read("w", box), box_of(mapped.read("w"), box))
    assert same(mapped.read("b", (slice(1, 3),)), np.ones(2, np.float32))
    with pytest.raises(IndexError, match="cuts a block"):
        mapped.read("w", (slice(0, 6), slice(0, 16)))
    with pytest.raises(KeyError, match="'c'"):
        mapped.read("c")


def test_mapped_store_catches_a_transform_that_lies() -> None:
    @dataclass(frozen=True)
    class Liar(Negate):
        def apply(self, name: str, value: np.ndarray, index: tuple[slice, ...]) -> np.ndarray:
            return value[:1]

    with pytest.raises(AssertionError, match="the spec promises"):
        MappedStore(MemoryStore({"a": np.ones((3, 2), np.float32)}), Liar()).read("a")

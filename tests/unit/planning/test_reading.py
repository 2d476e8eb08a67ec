"""Bytes that processes read, by hand: each part once, and whole what a store reads whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from pipeline.coded_store import CodedStore
from pipeline.mesh import Layout, Mesh, Parameter
from pipeline.planning.layout import lay_out
from pipeline.planning.reading import bytes_read
from pipeline.tensors.binding import Binding, Bound, Part
from pipeline.tensors.regions import overlap, portions
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import Index
from pipeline.tensors.views import JoinedStore
from pipeline.testing.memory import MemoryStore
from plugins.quant.blockwise import Blockwise
from tests.unit.planning.test_layout import STORED, layer, specs_of

TWO = Mesh({"x": 2})
ROWS, COLUMNS = (("x",), ()), ((), ("x",))


@dataclass(frozen=True)
class Outline:
    """Specs without values."""

    specs: Mapping[str, TensorSpec]
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def read(self, name: str, index: Index = ()) -> Any:
        raise AssertionError(f"{name} is read")


def one(store: Any, axes: tuple[tuple[str, ...], ...], processes: list[tuple[int, ...]]) -> list[int]:
    """Of the only tensor of a store, divided like this over two devices."""
    (name,) = store.specs
    shape = store.specs[name].shape
    parameter = Parameter((name,), shape, ("embed",) * len(shape), (1,) * len(shape))
    return bytes_read(store, TWO, [parameter], {name: Layout(shape, axes, ((),) * len(shape))}, processes)


def test_hosts_read_each_part_once() -> None:
    """Weights lie divided within a host, so each host reads everything; over hosts, each reads its half."""
    specs = specs_of(layer())
    whole = sum(s.nbytes for s in specs.values())
    within = Mesh({"host": 2, "fsdp": 2}, {"batch": ("host", "fsdp")}, {"fsdp": STORED})
    across = Mesh({"fsdp": 2, "data": 2}, {"batch": ("fsdp", "data")}, {"fsdp": STORED})
    for mesh, share in ((within, whole), (across, whole // 2)):
        layouts = lay_out(mesh, layer(), specs)
        found = bytes_read(Outline(specs), mesh, layer(), layouts, [(0, 1), (2, 3), range(4), [3]])
        assert found == [share, share, whole, whole // 2]


def test_parts_of_packed_tensors() -> None:
    """[6, 128] in MXFP4: 64 bytes and 4 scales a row, of which each has half."""
    store = Outline({"w": TensorSpec((6, 128), "BF16", MXFP4)})
    assert one(store, COLUMNS, [(0,), (0, 1)]) == [6 * 34, 6 * 68]
    scale = Outline({"w": TensorSpec((6, 128), "BF16", Scheme("int8", 0, "f32"))})
    assert one(scale, COLUMNS, [(0,), (0, 1)]) == [6 * (64 + 4), 2 * 6 * (64 + 4)]  # of a row's scale each has one


def test_what_is_coded_across_a_tensor_is_read_whole_and_once() -> None:
    spec = TensorSpec((64, 128), "BF16", Scheme("nf4", 64, "dynamic8", second="dynamic8"))
    assert one(Outline({"w": spec}), ROWS, [(0,), (0, 1)]) == [spec.nbytes] * 2


def test_experts_that_lie_elsewhere_are_not_read() -> None:
    names = tuple(f"experts.{e}" for e in range(4))
    store = Outline({name: TensorSpec((6, 10), "BF16") for name in names})
    parameter = Parameter(names, (4, 6, 10), ("experts", "mlp", "embed"), (1, 1, 1), stack=True)
    layout = Layout((4, 6, 10), (("x",), (), ()), ((), (), ()))
    assert bytes_read(store, TWO, [parameter], {names[0]: layout}, [(0,), (1,), (0, 1)]) == [240, 240, 480]
    read = [r for p in portions((4, 6, 10), [layout.box(TWO, 1)], (1, 1), stack=True) for r in p.reads]
    assert [(r.tensor, r.at[0]) for r in read] == [(2, slice(2, 3)), (3, slice(3, 4))]


def test_a_scale_of_the_whole_matrix_wants_all_of_it_seen_once_a_process() -> None:
    """Two bytes a value; quantized while it is read, and the extremes of the whole are looked for first."""
    source = MemoryStore({"w": np.zeros((32, 64), np.float32)})
    coded = CodedStore(source, {"w": Blockwise("e2m1", 16, "e4m3", second="f32")}, measure=False)
    whole = 32 * 64 * 4
    assert one(coded, ROWS, [(0,), (0, 1)]) == [whole // 2 + whole, whole + whole]
    rows = CodedStore(source, {"w": Blockwise("int8", 0, "f32")}, measure=False)
    assert one(rows, ROWS, [(0,), (0, 1)]) == [whole // 2, whole]
    assert one(rows, COLUMNS, [(0,), (0, 1)])[1] >= whole


def test_a_scale_that_a_file_shares_is_read_with_every_tensor_that_has_it() -> None:
    """Two experts of one stored scale: it counts for both."""
    scheme = Scheme("int8", 0, "f32", block_rows=0)
    leaves = Outline({"codes": TensorSpec((4, 6), "U8"), "scale": TensorSpec((1, 1), "F32")})
    spec = TensorSpec((4, 6), "BF16", scheme)
    bound = Bound(spec, (Part("codes", "codes"), Part("scale", "scales")))
    store = JoinedStore(leaves, Binding({"w": bound}, leaves.specs, {}))
    assert one(store, ROWS, [(0,), (0, 1)]) == [12 + 4, 24 + 8]


@pytest.mark.parametrize("boxes", [[(0, 48)], [(0, 48), (48, 96)], [(16, 32), (80, 96)]])
def test_every_value_that_is_wanted_is_read_in_portions_of_no_more_than_was_said(boxes: list[tuple[int, int]]) -> None:
    wanted = [(slice(*rows), slice(0, 8)) for rows in boxes]
    for portion in portions((96, 8), wanted, (1, 1), elems=40):
        (box,) = portion.boxes
        seen = np.zeros((96, 8), int)
        for read in portion.reads:
            assert overlap(read.at, box) == read.at
            assert (read.box[0].stop - read.box[0].start) * 8 <= 40
            seen[read.box] += 1
        assert (seen[box] == 1).all()
        assert seen.sum() == seen[box].sum()

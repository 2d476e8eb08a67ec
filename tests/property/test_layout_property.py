"""Whatever the mesh, the shape and the scheme: parts that are laid out are equal, whole, and all there is."""

import math
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.errors import PlanError
from pipeline.mesh import COMPUTED, Layout, Mesh, Parameter
from pipeline.planning.layout import lay_out
from pipeline.planning.mesh_costs import exchanges, held_nbytes
from pipeline.tensors.blocks import component_box
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec

SCHEMES = (
    None,
    MXFP4,
    Scheme("int8", 0, "f32"),
    Scheme("e4m3", 8, "f32", block_rows=4),
    Scheme("int4", 0, "f32", block_rows=0),
    Scheme("e2m1", 1, "f32", block_rows=4),
    Scheme("e2m1", 16, "e4m3", second="f32"),
)
WEIGHTS = [name for name in COMPUTED if name not in ("batch", "kv_heads", "heads")]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Mesh, Parameter, TensorSpec]:
    """A mesh of up to three axes, each in a rule or stored, and a tensor whose dimensions often divide."""
    logical = draw(st.lists(st.sampled_from([*WEIGHTS, "embed"]), min_size=1, max_size=3, unique=True))
    axes = draw(st.dictionaries(st.sampled_from("abc"), st.integers(1, 4), min_size=1))
    rules: dict[str, tuple[str, ...]] = {}
    stored: dict[str, tuple[str, ...]] = {}
    for axis in axes:
        if (ruled := draw(st.sampled_from([*logical, "stored"]))) in WEIGHTS:
            rules[ruled] = (*rules.get(ruled, ()), axis)
        else:
            stored[axis] = tuple(draw(st.permutations([*WEIGHTS, "embed"])))
    units = tuple(draw(st.sampled_from([1, 2, 3])) for _ in logical)
    shape = tuple(u * draw(st.sampled_from([1, 4, 6, 32, 64, 96, 192])) for u in units)
    spec = TensorSpec(shape, "BF16", draw(st.sampled_from(SCHEMES)))
    assume(spec.scheme is None or spec.scheme.problem(shape) is None)
    return Mesh(axes, rules, stored, 1.0), Parameter(("w",), shape, tuple(logical), units), spec


def laid(case: tuple[Mesh, Parameter, TensorSpec]) -> Layout | None:
    """None where it is refused."""
    mesh, parameter, spec = case
    try:
        return lay_out(mesh, [parameter], {"w": spec})["w"]
    except PlanError:
        return None


@given(cases())
def test_parts_are_equal_whole_and_all_there_is(case: tuple[Mesh, Parameter, TensorSpec]) -> None:
    mesh, parameter, spec = case
    if (layout := laid(case)) is None:
        return
    parts = list(layout.boxes(mesh))
    assert sorted(d for _, devices in parts for d in devices) == list(range(mesh.size))
    assert len({len(devices) for _, devices in parts}) == 1
    for dim, n in enumerate(spec.shape):  # the parts of each dimension are its ranges, in order, with no gap
        bounds = sorted({(box[dim].start, box[dim].stop) for box, _ in parts})
        assert (bounds[0][0], bounds[-1][1]) == (0, n)
        assert all(a[1] == b[0] for a, b in pairwise(bounds))
        assert all(start % parameter.units[dim] == 0 for start, _ in bounds)
    assert len(parts) == math.prod(mesh.ways(over) for over in layout.axes)
    for box, devices in parts:
        assert math.prod(s.stop - s.start for s in box) == math.prod(layout.local_shape(mesh))
        for device in devices:
            assert layout.box(mesh, device) == box
            used = layout.used.box(mesh, device)
            assert all(u.start <= s.start and s.stop <= u.stop for s, u in zip(box, used, strict=True))
        codes = component_box(spec, "codes" if spec.scheme else "values", box)  # cuts no block, or it would raise
        assert codes


@given(cases())
def test_bytes_add_up(case: tuple[Mesh, Parameter, TensorSpec]) -> None:
    """All parts are the tensor, but for scales that parts share; what is gathered is what a device has not."""
    mesh, parameter, spec = case
    if (layout := laid(case)) is None:
        return
    held = held_nbytes(mesh, layout, spec)
    total = len(list(layout.boxes(mesh))) * held
    assert total >= spec.nbytes
    if spec.scheme is None:
        assert total == spec.nbytes
    sent = exchanges(mesh, [parameter], {"w": spec}, {"w": layout}, tokens=1, predicted=1, activation_nbytes=2)
    gathered = sum(e.nbytes for e in sent if e.place == "gather")
    assert gathered == held_nbytes(mesh, layout.used, spec) - held


def test_cases_are_divided_often_enough() -> None:
    """The strategy is worth something only where layouts are found and divide."""
    found = []

    @given(cases())
    def count(case: tuple[Mesh, Parameter, TensorSpec]) -> None:
        layout = laid(case)
        found.append(layout is not None and not layout.replicated)

    count()
    assert sum(found) > len(found) / 10

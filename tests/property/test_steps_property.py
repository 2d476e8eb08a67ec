"""Picks and steps against NumPy: every one alone and composed, every box, both directions, all dimensions different."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.tensors.binding import Binding, Bound, Part
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.steps import Index, Lane, Pick, Slice, Split, Step, Transpose
from pipeline.tensors.views import JoinedStore, grain, leaf_box, split, stored_leaves
from pipeline.testing.memory import MemoryStore

# Each beside what it does to an array, said in NumPy.
PICKS: list[tuple[Pick, Any]] = [
    (Index(0), lambda a: a[0]),
    (Index(2), lambda a: a[2]),
    (Lane(-1, 1, 2), lambda a: a[..., 1::2]),
    (Lane(-2, 0, 3), lambda a: a[..., 0::3, :]),
    (Lane(-2, 2, 3), lambda a: a[..., 2::3, :]),
]
STEPS: list[tuple[Step, Any]] = [
    (Slice(4), lambda a: np.concatenate([np.full((4, *a.shape[1:]), -1, a.dtype), a])),
    (Transpose(), lambda a: np.moveaxis(a, -1, -2)),
    (Split(5), lambda a: np.stack(np.split(a, a.shape[-1] // 5, axis=-1), axis=-2)),
    (Split(2), lambda a: np.stack(np.split(a, a.shape[-1] // 2, axis=-1), axis=-2)),
]
SHAPE = (3, 6, 10)


def boxes(shape: tuple[int, ...], steps: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """All of them."""
    sides = [
        [slice(a, b) for a, b in itertools.combinations_with_replacement(range(0, n + 1, g), 2)]
        for n, g in zip(shape, steps, strict=True)
    ]
    return itertools.product(*sides)


def there(part: Part, array: Any, ways: list[Any]) -> Any:
    """The leaf, by NumPy; what others hold of it is -1."""
    for way in ways:
        array = way(array)
    return array


def check(bound: Bound, leaves: dict[str, Any], whole: Any, box: tuple[slice, ...]) -> None:
    """Reading gives the box; writing it changes these elements of these leaves and nothing else."""
    store = JoinedStore(MemoryStore(leaves), Binding({"x": bound}, {}, {}))
    found = store.read("x", box)
    assert np.array_equal(found, whole[box])
    marks = {name: np.full_like(leaf, -2) for name, leaf in leaves.items()}
    for leaf, where, array in split(bound, box, whole[box]):
        marks[leaf][where] = array
    written = sum(int((mark != -2).sum()) for mark in marks.values())
    assert written == whole[box].size
    for name, mark in marks.items():
        assert np.array_equal(mark[mark != -2], leaves[name][mark != -2])


@pytest.mark.parametrize(("step", "way"), STEPS)
@pytest.mark.parametrize("shape", [SHAPE, SHAPE[1:]])
def test_every_box_of_every_step(step: Step, way: Any, shape: tuple[int, ...]) -> None:
    whole = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    leaf = way(whole)
    assert np.array_equal(step.pack(whole), leaf[4:] if isinstance(step, Slice) else leaf)
    assert np.array_equal(step.unpack(step.pack(whole)), whole)
    bound = Bound(TensorSpec(shape, "I32"), (Part("w", steps=(step,)),))
    for box in boxes(shape, grain(bound)):
        check(bound, {"w": leaf}, whole, box)


def together(pick: Pick) -> tuple[Pick, ...]:
    """All picks of a kind, which hold everything."""
    if isinstance(pick, Lane):
        return tuple(Lane(pick.dim, phase, pick.step) for phase in range(pick.step))
    return tuple(Index(i) for i in range(SHAPE[0]))


@pytest.mark.parametrize(("pick", "way"), PICKS)
@pytest.mark.brief(when=lambda pick: pick in (Index(2), Lane(-2, 2, 3)))
def test_every_box_of_every_pick(pick: Pick, way: Any) -> None:
    whole = np.arange(np.prod(SHAPE), dtype=np.int32).reshape(SHAPE)
    whole_box = tuple(slice(0, n) for n in SHAPE)
    assert np.array_equal(whole[pick.where(whole_box)], way(whole))
    parts = tuple(Part(str(p), picks=(p,)) for p in together(pick))
    bound = Bound(TensorSpec(SHAPE, "I32"), parts)
    leaves = {part.leaf: np.array(whole[part.picks[0].where(whole_box)]) for part in parts}
    assert {n: s.shape for n, s in stored_leaves({"x": bound}).items()} == {n: a.shape for n, a in leaves.items()}
    for box in boxes(SHAPE, grain(bound)):
        check(bound, leaves, whole, box)


@given(st.data())
def test_compositions(data: st.DataObject) -> None:
    """Experts apart and their rows taking turns, then any steps in any order: NumPy in that order gives the leaf."""
    shape = (3, data.draw(st.sampled_from([12, 30])), data.draw(st.sampled_from([20, 40])))
    whole = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    indexed, lane = data.draw(st.booleans()), data.draw(st.sampled_from([None, (-1, 2), (-2, 3)]))
    chosen = data.draw(st.lists(st.sampled_from(range(len(STEPS))), max_size=3))
    parts, leaves = [], {}
    for at in range(3) if indexed else (None,):
        for phase in range(lane[1] if lane else 1):
            picks: tuple[Pick, ...] = () if at is None else (Index(at),)
            value = whole if at is None else whole[at]
            if lane:
                picks += (Lane(lane[0], phase, lane[1]),)
                value = np.moveaxis(np.moveaxis(value, lane[0], 0)[phase :: lane[1]], 0, lane[0])
            steps: list[Step] = []
            for i in chosen:
                step, way = STEPS[i]
                fits = not isinstance(step, Split) or value.shape[-1] % step.size == 0
                if fits:
                    value = way(value)
                    steps.append(step)
            name = f"{at} {phase}"
            parts.append(Part(name, steps=tuple(steps), picks=picks))
            leaves[name] = value
    bound = Bound(TensorSpec(shape, "I32"), tuple(parts))
    box = []
    for n, g in zip(shape, grain(bound), strict=True):
        bounds = st.integers(0, n // g)
        start, stop = sorted(x * g for x in (data.draw(bounds), data.draw(bounds)))
        box.append(slice(start, stop))
    check(bound, leaves, whole, tuple(box))


@pytest.mark.parametrize(
    ("part", "box", "says"),
    [
        (Part("w", steps=(Split(5),)), (slice(0, 3), slice(0, 6), slice(0, 7)), "w: 0:7 cuts a group of 5"),
        (Part("w", picks=(Lane(-2, 1, 3),)), (slice(0, 3), slice(1, 6)), "w: 1:6 cuts a group of 3 in dimension -2"),
    ],
)
def test_what_cuts_a_group_is_refused(part: Part, box: tuple[slice, ...], says: str) -> None:
    with pytest.raises(IndexError, match=says):
        leaf_box(part, TensorSpec(SHAPE, "I32"), box)


@pytest.mark.parametrize("picks", [(Index(0), Index(2)), (Lane(-2, 0, 2),)])
def test_parts_that_leave_a_gap_are_a_bug(picks: tuple[Pick, ...]) -> None:
    whole = np.zeros(SHAPE, np.int32)
    bound = Bound(TensorSpec(SHAPE, "I32"), tuple(Part(str(p), picks=(p,)) for p in picks))
    leaves = {str(p): np.array(whole[p.where(tuple(slice(0, n) for n in SHAPE))]) for p in picks}
    store = JoinedStore(MemoryStore(leaves), Binding({"x": bound}, {}, {}))
    with pytest.raises(AssertionError, match="parts hold"):
        store.read("x")


def test_a_box_without_the_expert_holds_nothing_of_it() -> None:
    part = Part("w", picks=(Index(2),))
    assert leaf_box(part, TensorSpec(SHAPE, "I32"), (slice(0, 2),)) is None
    assert leaf_box(part, TensorSpec(SHAPE, "I32"), (slice(2, 3),)) == (slice(0, 6), slice(0, 10))


@pytest.mark.parametrize(
    ("bits", "parts", "expected"),
    [
        (4, (Part("w", "codes", (Split(16),)),), (1, 1, 32)),  # bytes of codes are two elements each
        (4, (Part("w", "codes", (Split(3),)), Part("s", "scales")), (1, 1, 6)),
        (3, (Part("w", "codes", (Split(4),)),), (1, 1, 32)),  # 32 bits in 4 bytes: no whole elements before 12 bytes
        (4, (Part("w", "codes", (Transpose(), Split(3))),), (1, 3, 2)),
        (4, (Part("s", "scales", picks=(Lane(-2, 0, 2),)),), (1, 2, 2)),
        (4, (Part("s", "scales", (Split(5),)),), (1, 1, 10)),  # five blocks of two
        (4, (Part("s", "second", picks=(Index(1),)),), (1, 1, 2)),
    ],
)
def test_what_components_ask_of_boxes(bits: int, parts: tuple[Part, ...], expected: tuple[int, ...]) -> None:
    scheme = Scheme(f"int{bits}", 2 if bits == 4 else 8, "e4m3", second="f32")
    assert grain(Bound(TensorSpec((3, 12, 480), "BF16", scheme), parts)) == expected

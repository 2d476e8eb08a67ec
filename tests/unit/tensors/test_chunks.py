"""Chunks cover every element exactly once, and are as small as they were asked to be."""

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.tensors.chunks import ROW_ALIGN, cut, pack
from pipeline.tensors.pieces import Piece
from pipeline.tensors.spec import TensorSpec

SHAPES = st.lists(st.integers(1, 9), max_size=4).map(tuple)


def covered(shape: tuple[int, ...], pieces: list[Piece]) -> np.ndarray:
    """How often each element is in a piece."""
    count = np.zeros(shape, int)
    for piece in pieces:
        assert len(piece.index) == len(shape)
        count[piece.index] += 1
    return count


def elems(piece: Piece) -> int:
    return prod(s.stop - s.start for s in piece.index)


@given(SHAPES, st.integers(1, 700))
def test_every_element_exactly_once(shape: tuple[int, ...], chunk_elems: int) -> None:
    pieces = list(cut("w", shape, chunk_elems))
    assert (covered(shape, pieces) == 1).all()
    assert all(s.stop > s.start and s.stop <= n for p in pieces for s, n in zip(p.index, shape, strict=True))


@given(SHAPES.filter(lambda s: len(s) > 1), st.integers(1, 700))
def test_no_piece_is_larger_than_asked(shape: tuple[int, ...], chunk_elems: int) -> None:
    for piece in cut("w", shape, chunk_elems):
        assert elems(piece) <= chunk_elems
        assert piece.index[-1] == slice(0, shape[-1]) or shape[-1] > chunk_elems


@given(st.integers(1, 50_000), st.integers(1, 60_000))
def test_vectors_are_cut_at_whole_pages(n: int, chunk_elems: int) -> None:
    pieces = list(cut("b", (n,), chunk_elems))
    assert (covered((n,), pieces) == 1).all()
    assert all(p.index[0].start % ROW_ALIGN == 0 for p in pieces) or chunk_elems < ROW_ALIGN
    assert all(elems(p) <= chunk_elems for p in pieces)


@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 5), st.integers(1, 3), st.integers(1, 200))
def test_bounds_are_multiples_of_the_grain(experts: int, rows: int, grain: int, columns: int, chunk_elems: int) -> None:
    shape = (experts, rows * grain, columns)
    pieces = list(cut("w", shape, chunk_elems, (1, grain, 1)))
    assert (covered(shape, pieces) == 1).all()
    assert all(p.index[1].start % grain == 0 for p in pieces)
    assert all(elems(p) <= max(chunk_elems, grain * columns) for p in pieces)


def test_slices_are_even() -> None:
    """Eleven rows in pieces of at most ten: six and five, not ten and one."""
    assert [elems(p) for p in cut("w", (11, 1), 10)] == [6, 5]


def test_pieces_come_in_the_order_of_the_bytes() -> None:
    shape = (3, 4, 5)
    flat = np.arange(prod(shape)).reshape(shape)
    first = [flat[p.index].flat[0] for p in cut("w", shape, 10)]
    assert first == sorted(first)
    assert len(first) == 6


@given(st.lists(SHAPES, max_size=12), st.integers(1, 300))
def test_packing_keeps_all_tensors(shapes: list[tuple[int, ...]], chunk_elems: int) -> None:
    specs = {f"t{i}": TensorSpec(s, "BF16") for i, s in enumerate(shapes)}
    groups = list(pack(specs, chunk_elems))
    pieces = [p for g in groups for p in g]
    assert all(groups)
    assert {p.tensor for p in pieces} == set(specs)
    for small in (True, False):  # a large tensor goes before a group that still has room; otherwise in order
        names = [n for n, s in specs.items() if (s.size <= chunk_elems // 2) == small]
        assert [n for n in dict.fromkeys(p.tensor for p in pieces) if n in names] == names
    for name, spec in specs.items():
        assert (covered(spec.shape, [p for p in pieces if p.tensor == name]) == 1).all()
    assert all(sum(map(elems, g)) <= chunk_elems for g in groups if len(g) > 1)


def test_small_tensors_share_a_chunk() -> None:
    specs = {f"bias{i}": TensorSpec((10,), "BF16") for i in range(100)}
    assert [len(g) for g in pack(specs, 400)] == [40, 40, 20]

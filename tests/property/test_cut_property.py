"""Where a tensor is cut changes no byte of what is written, for any scheme, source and layout."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.coded_store import CodedStore
from pipeline.ops import Kernel
from pipeline.tensors.blocks import component_box, grain_of
from pipeline.tensors.chunks import cut
from pipeline.tensors.scheme import Scheme
from pipeline.testing.memory import MemoryStore, same
from plugins.quant.blockwise import Blockwise
from tests.cases.mx import mx_method

METHODS = {
    "mxfp4": mx_method(),
    "int8 row": Blockwise("int8", 0, "f32", scale_rule="amax"),
    "int4 row, half range": Blockwise("int4", 0, "bf16", scale_rule="half_range"),
    "uint4 row": Blockwise("uint4", 0, "f32", zero_point="int", scale_rule="minmax"),
    "int3 bands": Blockwise("int3", 0, "f32", block_rows=3, scale_rule="amax"),
    "e4m3 row, power of two": Blockwise("e4m3", 0, "e8m0", scale_rule="floor", nonfinite="poison"),
    "e2m1 row under a matrix": Blockwise("e2m1", 0, "e4m3", second="f32", scale_rule="amax"),
    "int8 matrix": Blockwise("int8", 0, "f32", block_rows=0, scale_rule="amax"),
    "int8 row at random": Blockwise("int8", 0, "f32", scale_rule="amax", stochastic=True),
    "int4 groups": Blockwise("int4", 16, "f32", scale_rule="amax"),
    "tiles": Blockwise("e4m3", 32, "f32", block_rows=4, scale_rule="amax"),
    "down the columns": Blockwise("e2m1", 1, "f32", block_rows=4, scale_rule="amax"),
    "signed": Blockwise("int4", 0, "f32", scale_rule="signed"),
    "ggml's minimum": Blockwise("uint4", 0, "f16", zero_point="min_f16", scale_rule="minmax"),
    "searched": Blockwise("int4", 0, "f32", scale_rule="amax", search="mse", search_grid=(0.9, 0.8)),
}
BACKENDS = {"numpy": ("numpy",), "reference": ("reference",), "xla": ("xla", "numpy")}


def values(shape, rng, poison=False):
    x = rng.standard_normal(shape).astype(np.float32) * np.exp2(rng.integers(-9, 9, shape))
    x.reshape(-1)[rng.integers(0, x.size, 3)] = (0.0, -0.0, np.nan if poison else 3e4)
    return x.astype(np.float16).astype(np.float32) if not poison else x.astype(np.float32)


def check(method, x, elems, grain=None):
    """Encode whole and in pieces of `elems`; give back the pieces."""
    store = CodedStore(MemoryStore({"w": x}), {"w": method}, measure=False)
    whole = CodedStore(MemoryStore({"w": x}), {"w": method}, measure=False).read("w")
    spec, pieces = store.specs["w"], list(cut("w", x.shape, elems, grain or grain_of(store, "w")))
    for piece in pieces:
        part = store.read("w", piece.index)
        want = {c: a[component_box(spec, c, piece.index)] for c, a in whole.components.items()}
        for component, array in part.components.items():
            assert same(np.ascontiguousarray(array), np.ascontiguousarray(want[component])), (component, piece)
    return pieces


@pytest.mark.parametrize("shape", [(192,), (6, 192), (2, 5, 96)], ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_bytes_are_the_same_whatever_the_cut(name, shape):
    method = METHODS[name]
    if method.scheme.problem(shape):
        return
    x = values(shape, np.random.default_rng(3), poison=method.nonfinite == "poison")
    counts = [len(check(method, x, elems)) for elems in (16, 40, 100, 200, 1 << 20)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "name", ["int8 row", "uint4 row", "int3 bands", "e2m1 row under a matrix", "e4m3 row, power of two"]
)
def test_every_backend_takes_parts_of_rows(backend, name):
    fields = {f: getattr(METHODS[name], f) for f in METHODS[name].__dataclass_fields__}
    method = Blockwise(**{**fields, "quantize": Kernel("quantize", BACKENDS[backend])})
    x = values((2, 4, 96), np.random.default_rng(5), poison=method.nonfinite == "poison")
    store = CodedStore(MemoryStore({"w": x}), {"w": METHODS[name]}, measure=False).read("w")
    parts = CodedStore(MemoryStore({"w": x}), {"w": method}, measure=False)
    for piece in cut("w", x.shape, 32, grain_of(parts, "w")):
        part = parts.read("w", piece.index)
        for component, array in part.components.items():
            box = component_box(parts.specs["w"], component, piece.index)
            assert same(np.asarray(array), np.ascontiguousarray(store.components[component][box]))


def test_a_row_that_shares_a_scale_is_cut_and_one_that_is_searched_is_not():
    x = values((2, 192), np.random.default_rng(0))
    assert len(check(METHODS["int8 row"], x, 64)) == 6
    assert len(check(METHODS["searched"], x, 64)) == 2
    assert len(check(METHODS["signed"], x, 64)) == 2


@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple),
    elems=st.integers(1, 600),
    data=st.data(),
)
def test_pieces_cover_a_tensor_once_at_its_grain(shape, elems, data):
    grain = tuple(data.draw(st.integers(1, n + 3)) for n in shape)
    seen = np.zeros(shape, int)
    least = int(np.prod([min(g, n) for g, n in zip(grain, shape, strict=True)]))
    for piece in cut("t", shape, elems, grain):
        seen[piece.index] += 1
        for s, n, g in zip(piece.index, shape, grain, strict=True):
            assert s.start % min(g, n) == 0
            assert s.stop % min(g, n) == 0 or s.stop == n
        assert seen[piece.index].size <= max(elems, least)
    assert (seen == 1).all()


def test_a_scheme_tells_its_grain():
    coded = CodedStore(MemoryStore({"w": np.zeros((4, 96), np.float32)}), {"w": METHODS["int3 bands"]}, measure=False)
    assert coded.specs["w"].scheme == Scheme("int3", 0, "f32", 3)
    assert grain_of(coded, "w") == (3, 8)

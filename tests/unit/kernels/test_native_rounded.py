"""A few rows of activations as integers of eight bits: what they are rounded to, and that nothing else is lost."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.testing.memory import quantized
from plugins.kernels.cases import BF16, normal
from plugins.kernels.matmul import native, native_int8, native_int16
from plugins.kernels.matmul.reference import values
from plugins.kernels.native import ffi, library, scheme
from tests.cases.native import BEST, instruction_set, needs_compiler

pytestmark = needs_compiler

SCHEMES = {
    "mxfp4": MXFP4,
    "e2m1 a row": Scheme("e2m1", 0, "f32"),
    "nvfp4": Scheme("e2m1", 16, "e4m3", second="f32"),
    "int4, 24": Scheme("int4", 24, "f16"),
    "uint4 with zeros": Scheme("uint4", 32, "f32", zero="int"),
    "int8, 32": Scheme("int8", 32, "f16"),
    "int8 a row": Scheme("int8", 0, "f32"),
    "uint8, minimum": Scheme("uint8", 32, "f32", zero="min_f16"),
    "uint8 a row": Scheme("uint8", 0, "f32", zero="int"),
    "mxint8": Scheme("mxint8", 32, "e8m0"),
}


@pytest.fixture(params=(*library.ISAS, BEST))
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return instruction_set(request.param, monkeypatch)


def rounded(x: Any) -> Any:
    """float64: what activations are once they are integers in blocks of 32 columns."""
    wide = np.asarray(x, np.float32)
    out = np.zeros(wide.shape)
    for k in range(0, wide.shape[1], 32):
        block = wide[:, k : k + 32]
        top = np.abs(block).max(1, keepdims=True)
        unit = np.where(top > 0, top * np.float32(1 / 127), 1)
        codes = np.rint(block * np.where(top > 0, np.float32(127) / np.where(top > 0, top, 1), 0))
        out[:, k : k + 32] = codes.astype(np.float64) * unit
    return out


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.brief(each=("name",))
def test_activations_are_rounded_and_nothing_else(isa: str, name: str, rows: int) -> None:
    """Of rows that end in every part of a register, and weights in stacks of odd numbers of rows."""
    rng = np.random.default_rng(rows)
    for n_in in (32, 72, 104, 424, 576):
        if n_in % (SCHEMES[name].block_elems or 1) or n_in % 8:
            continue
        w = quantized(SCHEMES[name], (37, n_in))
        for dtype in (np.float32, BF16):
            x = normal(rng, rows, n_in).astype(dtype)
            found = np.asarray(native_int8.matmul(x, w, out_dtype=np.float32))
            held, seen = values(w, np.float32).astype(np.float64), rounded(x)
            # Before a zero point or a minimum is taken off, sums are larger than what they come to.
            largest = np.abs(held).max() * (1 if w.zeros is None else 4)
            bound = np.abs(seen).sum(1, keepdims=True) * largest * 2.0**-21
            assert (np.abs(found - seen @ held.T) <= bound).all()
            assert not np.array_equal(found, native.matmul(x, w, out_dtype=np.float32))


def test_a_row_is_the_same_among_others(isa: str) -> None:
    x, w = normal(np.random.default_rng(0), 4, 416), quantized(MXFP4, (37, 416))
    all_four = np.asarray(native_int8.matmul(x, w))
    for rows in (slice(0, 1), slice(1, 3), slice(1, 4)):
        assert np.array_equal(np.asarray(native_int8.matmul(x[rows], w)), all_four[rows])


def test_experts_have_rows_of_their_own(isa: str) -> None:
    x, w = normal(np.random.default_rng(0), 3, 96), quantized(MXFP4, (5, 33, 96))
    expert = jnp.asarray([4, 0, 2, 0, -1, 4], jnp.int32)
    (found,) = ffi.grouped(jnp.asarray(x), expert, [w], 8)
    for a, e in enumerate([4, 0, 2, 0, None, 4]):
        one = w if e is None else replace(w, codes=w.codes[e], scales=w.scales[e])
        want = np.zeros(33, np.float32) if e is None else np.asarray(native_int8.matmul(x[a // 2][None], one))[0]
        assert np.array_equal(np.asarray(found)[a], want)


def test_the_largest_products_do_not_overflow(isa: str) -> None:
    for name, code in (("int8, 32", 0x80), ("uint8 a row", 0xFF), ("mxfp4", 0xFF), ("uint4 with zeros", 0xFF)):
        w = quantized(SCHEMES[name], (3, 96))
        w = replace(w, codes=np.full_like(w.codes, code))
        for sign in (1, -1):
            x = np.full((2, 96), np.float32(sign * 3))
            want = x.astype(np.float64) @ values(w, np.float32).astype(np.float64).T
            np.testing.assert_allclose(native_int8.matmul(x, w), want, rtol=1e-5)


def test_what_is_not_finite_stays_in_its_row(isa: str) -> None:
    x, w = normal(np.random.default_rng(0), 4, 64), quantized(MXFP4, (5, 64))
    x[1, 40], x[2, 1], x[3] = np.nan, np.inf, 0
    found = np.asarray(native_int8.matmul(x, w))
    assert np.isfinite(found[0]).all()
    assert not np.isfinite(found[1:3]).any()
    assert (found[3] == 0).all()


def test_what_is_next_to_nothing_is_nothing_or_what_it_was(isa: str) -> None:
    w = quantized(SCHEMES["int8 a row"], (5, 64))
    for size in (1e-42, 1e-37, 1e-30, 1e30):
        x = normal(np.random.default_rng(0), 1, 64) * np.float32(size)
        found = np.asarray(native_int8.matmul(x, w), np.float64)
        most = np.abs(x.astype(np.float64)) @ np.abs(values(w, np.float32)).astype(np.float64).T
        assert (np.abs(found) <= 1.01 * most).all()


@pytest.mark.parametrize("name", ["BF16", "nf4", "e2m3", "blocks of three", "a part"])
def test_others_are_exact(name: str) -> None:
    """And so is all of a call in which one of the weights is another."""
    other = {
        "nf4": Scheme("nf4", 32, "f32"), "e2m3": Scheme("e2m3", 32, "e8m0"),
        "blocks of three": Scheme("int4", 3, "f32"),
    }  # fmt: skip
    x = jnp.asarray(normal(np.random.default_rng(0), 3, 96))
    first = quantized(MXFP4, (8, 96))
    if name == "a part":
        ws = [first, normal(np.random.default_rng(1), 8, 96)]
    else:
        plain = normal(np.random.default_rng(1), 8, 96).astype(BF16)
        ws = [plain if name == "BF16" else quantized(other[name], (8, 96))]
    for one, same in zip(ffi.grouped(x, None, ws, 8), ffi.grouped(x, None, ws), strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(same))


@pytest.mark.parametrize("backend", [native_int8, native_int16])
def test_several_weights_meet_one_x_in_one_call(backend: Any) -> None:
    """As they do one by one; of a few rows all of them are exact where one is no integers."""
    rng = np.random.default_rng(0)
    few, many = normal(rng, 3, 96), normal(rng, 50, 96)
    ws, plain = [quantized(MXFP4, (9, 96)), quantized(SCHEMES["int8, 32"], (7, 96))], normal(rng, 5, 96).astype(BF16)
    for x in (few, many):
        calls = [(x, w, None) for w in ws]
        assert str(jax.make_jaxpr(lambda: backend.together(calls))()).count("ffi_call[") == 1  # noqa: B023
        for found, (_, w, _) in zip(backend.together(calls), calls, strict=True):
            assert np.array_equal(found, backend.matmul(x, w))
            if x is many:
                assert not np.array_equal(found, native.matmul(x, w))
    found, _ = backend.together([(few, ws[0], None), (few, plain, None)])
    assert np.array_equal(found, native.matmul(few, ws[0]))
    apart = backend.together([(few, ws[0], None), (few + 1, ws[1], None)])
    assert np.array_equal(apart[1], backend.matmul(few + 1, ws[1]))


def test_which_weights_meet_integers() -> None:
    def takes(block: int, columns: int) -> bool:
        return scheme.takes_integers(TensorSpec((4, columns), "F32", Scheme("int4", block, "f32")))

    assert takes(24, 96)
    assert not takes(4, 96)
    assert takes(2, 2), "a scale a row"
    assert not scheme.takes_integers(TensorSpec((4, 96), "BF16", None))


@pytest.mark.parametrize(
    ("of", "from_8", "from_16"),
    [
        (None, 24, 48),
        (Scheme("nf4", 64, "f32"), 24, 48),
        (Scheme("int8", 32, "f32"), 0, 48),
        (Scheme("int4", 32, "f32"), 0, 0),
        (Scheme("q4_k", 256, "inside"), 0, 48),
        (Scheme("q2_k", 256, "inside"), 24, 48),
    ],
)
def test_weights_that_are_no_integers_are_rounded_where_that_is_faster(
    of: Scheme | None, from_8: int, from_16: int
) -> None:
    rng = np.random.default_rng(0)
    w = jnp.asarray(normal(rng, 5, 256)) if of is None else jax.tree.map(jnp.asarray, quantized(of, (5, 256), 0))
    for backend, rows in ((native_int8, from_8), (native_int16, from_16)):
        for count in {max(rows - 1, 5), max(rows, 5)}:
            x = jnp.asarray(normal(rng, count, 256))
            exact = np.array_equal(backend.matmul(x, w), native.matmul(x, w))
            assert exact == (count < rows), (backend.__name__, count)

"""Products with many rows in C++: every format and instruction set within the error of a float32 sum; over integers."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.tensors.scheme import STRUCTS, Scheme
from pipeline.testing.memory import quantized
from plugins.kernels.cases import BF16, SCHEMES, normal
from plugins.kernels.matmul import native, native_int8, native_int16
from plugins.kernels.matmul.reference import values
from plugins.kernels.native import ffi, library, scheme
from tests.cases.native import BEST, instruction_set, needs_compiler

pytestmark = needs_compiler

MORE = {
    "e2m3": Scheme("e2m3", 32, "e8m0"),
    "e5m2": Scheme("e5m2", 32, "e8m0"),
    "mxint8": Scheme("mxint8", 32, "e8m0"),
    "int2": Scheme("int2", 32, "f32"),
    "uint8, minimum": Scheme("uint8", 32, "f32", zero="min_f16"),
    "uint3 with zero": Scheme("uint3", 32, "f32", zero="int"),
    "blocks of no power of two": Scheme("int4", 24, "f32"),
    "blocks of one": Scheme("int4", 1, "f32", block_rows=3),
}
PLAIN = {"F32": np.float32, "BF16": BF16, "F16": np.float16}
WHOLE = {name: Scheme(name, size, "inside") for name, (size, _) in STRUCTS.items()}
EXACT = (
    *("mxfp4", "e2m3", "mxint8", "int8 a row", "int8 a matrix", "int4 a group", "int2", "int3"),
    *("uint4 with zero", "q4_1", "uint3 with zero", *(name for name in STRUCTS if name != "q2_k")),
)


@pytest.fixture(params=(*library.ISAS, BEST))
def best_too(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return instruction_set(request.param, monkeypatch)


@pytest.fixture(autouse=True)
def _no_row_is_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheme, "few_rows", lambda *_: 0)
    monkeypatch.setattr(scheme, "ROUNDED_ROWS", dict.fromkeys(scheme.ROUNDED_ROWS, 0))


def weights(name: str, *shape: int) -> Any:
    if name in PLAIN:
        return normal(np.random.default_rng(len(shape)), *shape).astype(PLAIN[name])
    w = quantized({**SCHEMES, **MORE, **WHOLE}[name], shape)
    return replace(w, codes=w.codes & 0xFB) if name == "e5m2" else w  # without infinities


def exact(x: Any, w: Any) -> tuple[Any, Any]:
    """The product in float64, and what the sum of a float32 may be off by."""
    wide, held = x.astype(np.float64), values(w, np.float32).astype(np.float64)
    bound = np.abs(wide) @ np.abs(held).swapaxes(-1, -2)
    return wide @ held.swapaxes(-1, -2), bound * 2.0**-24 * (4 + math.sqrt(x.shape[-1]))


def off(x: Any, w: Any, found: Any) -> float:
    """Error of a product relative to its root mean square."""
    want = exact(x, w)[0]
    return float(np.sqrt(np.mean((np.asarray(found) - want) ** 2) / np.mean(want**2)))


@pytest.mark.parametrize("name", [*PLAIN, *SCHEMES, *MORE])
def test_every_format_under_every_instruction_set(isa: str, name: str) -> None:
    """Columns past a strip, part of a square of codes; rows of no even tile; rows of weights past a strip."""
    w = weights(name, 33, 576)
    for dtype in (np.float32, BF16) if name in (*PLAIN, "mxfp4") else (np.float32,):
        x = normal(np.random.default_rng(0), 17, 576, dtype=dtype)
        want, bound = exact(x, w)
        assert (np.abs(native.matmul(x, w, out_dtype=np.float32) - want) <= bound).all(), dtype


@pytest.mark.parametrize("dots", [1, 2])
@pytest.mark.parametrize("name", ["BF16", *SCHEMES, *MORE])
def test_bf16_activations_with_what_the_machine_has(name: str, dots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dot products of pairs of bfloat16 where the format allows: if the machine is quick at them, and anyway. Exact as
    ever; no even tile."""
    monkeypatch.setattr(ffi, "DOTS", dots)
    for rows, out, n_in in ((1, 33, 576), (20, 7, 1058 if name == "BF16" else 1152)):
        x, w = normal(np.random.default_rng(0), rows, n_in, dtype=BF16), weights(name, out, n_in)
        want, bound = exact(x, w)
        assert (np.abs(native.matmul(x, w, out_dtype=np.float32) - want) <= bound).all()


@pytest.mark.parametrize("name", ["BF16", *SCHEMES, *MORE])
def test_float32_activations_with_what_the_machine_has(name: str) -> None:
    """In parts, by the matrix unit, where it has one: a tile, a tile and a row of the next, several; none even."""
    for rows, out, n_in in ((1, 33, 576), (17, 70, 576), (70, 290, 1152)):
        x, w = normal(np.random.default_rng(0), rows, n_in), weights(name, out, n_in)
        want, bound = exact(x, w)
        assert (np.abs(native.matmul(x, w) - want) <= bound).all()


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("name", ["BF16", "mxfp4", "int4 a group"])
def test_rows_longer_than_what_is_decoded_at_a_time(name: str, dtype: Any) -> None:
    x, w = normal(np.random.default_rng(0), 19, 12576, dtype=dtype), weights(name, 37, 12576)
    want, bound = exact(x, w)
    assert (np.abs(native.matmul(x, w, out_dtype=np.float32) - want) <= bound).all()


def test_scales_near_the_ends_of_float32_are_multiplied_as_others(best_too: str) -> None:
    """Of one row: its numbers are in its own scale, the others what they would be beside any."""
    x, w = normal(np.random.default_rng(0), 40, 320), weights("mxfp4", 70, 320)
    usual = np.asarray(native.matmul(x, w))
    for extreme in (4, 8, 247, 248, 250):
        scales = np.array(w.scales)
        scales.view(np.uint8)[33] = extreme
        beside, own = replace(w, scales=scales), x * np.float32(2.0**-8 if extreme > 127 else 2.0**8)
        want, bound = exact(own, beside)
        assert (np.abs(np.asarray(native.matmul(own, beside)) - want) <= bound)[:, 33].all()
        assert np.array_equal(np.delete(np.asarray(native.matmul(x, beside)), 33, 1), np.delete(usual, 33, 1))


@pytest.mark.parametrize("rows", [1, 2, 13, 15, 127, 553])
def test_any_number_of_rows(best_too: str, rows: int) -> None:
    x, w = normal(np.random.default_rng(rows), rows, 96), weights("mxfp4", 5, 96)
    want, bound = exact(x, w)
    assert (np.abs(native.matmul(x, w) - want) <= bound).all()


@pytest.mark.parametrize("n_in", [1, 15, 33, 515])
@pytest.mark.parametrize("name", ["F32", "int8 a row"])
@pytest.mark.brief
def test_any_number_of_columns(isa: str, name: str, n_in: int) -> None:
    for dtype in (np.float32, BF16):
        x, w = normal(np.random.default_rng(n_in), 7, n_in, dtype=dtype), weights(name, 3, n_in)
        want, bound = exact(x, w)
        assert (np.abs(native.matmul(x, w, out_dtype=np.float32) - want) <= bound).all()
    for backend, most in ((native_int8, 0.03), (native_int16, 0.002)):
        found = np.asarray(backend.matmul(x, w, out_dtype=np.float32))
        np.testing.assert_allclose(found, want, rtol=0, atol=most * np.abs(want).max())


def test_no_columns_and_no_rows() -> None:
    (found,) = ffi.grouped(jnp.ones((9, 0)), None, [np.ones((3, 0), np.float32)])
    assert np.asarray(found).tolist() == [[0] * 3] * 9
    assert native.matmul(np.ones((9, 4), np.float32), np.ones((0, 4), np.float32)).shape == (9, 0)
    for rows in (1, 9):
        for backend in (native, native_int8):
            assert np.array_equal(backend.matmul(np.ones((rows, 0)), np.ones((3, 0))), np.zeros((rows, 3)))


@pytest.mark.parametrize("other", ["mxfp4", "q4_1"])
@pytest.mark.parametrize("bits", [0, 8, 16])
def test_rows_go_to_their_experts(best_too: str, bits: int, other: str) -> None:
    """Experts that nobody chose, one that many chose, rows that chose none, two stacks in a call, two choices a row."""
    rng = np.random.default_rng(0)
    x, stacks = normal(rng, 150, 64), [weights("mxfp4", 6, 40, 64), weights(other, 6, 9, 64)]
    x[::4, 3] = 1e4  # more than all others of its row
    expert = rng.choice(np.array([-1, 0, 3, 4], np.int32), 300, p=[0.1, 0.7, 0.1, 0.1])
    for w, found in zip(stacks, ffi.grouped(jnp.asarray(x), jnp.asarray(expert), stacks, bits), strict=True):
        want, bound = exact(x.repeat(2, 0)[:, None], values(w, np.float32)[expert])
        want, bound = (np.where(expert[:, None] < 0, 0, a[:, 0]) for a in (want, bound))
        most = {0: bound, 8: 0.03 * np.abs(want).max(), 16: 0.002 * np.abs(want).max()}[bits]
        assert (np.abs(np.asarray(found) - want) <= most).all()


@pytest.mark.parametrize("bits", [0, 8, 16])
@pytest.mark.parametrize(
    ("dtype", "of"), [(np.float32, "F32"), (np.float32, "BF16"), (BF16, "BF16"), (np.float32, "mxfp4")]
)
def test_numbers_do_not_depend_on_how_work_is_divided(bits: int, dtype: Any, of: str) -> None:
    """Whatever rows and weights a piece of work has, a number is the same bit for bit."""
    x = jnp.asarray(normal(np.random.default_rng(0), 200, 1056, dtype=dtype))
    w = weights(of, 300, 1056)
    (whole,) = ffi.grouped(x, None, [w], bits)
    for rows in (slice(0, 1), slice(7, 12), slice(60, 200)):
        for part in (slice(0, 1), slice(30, 163)):
            (found,) = ffi.grouped(x[rows], None, [jax.tree.map(lambda a, part=part: a[part], w)], bits)
            assert np.array_equal(np.asarray(found), np.asarray(whole)[rows, part])
    for _ in range(10):
        assert np.array_equal(*map(np.asarray, (ffi.grouped(x, None, [w], bits)[0], whole)))


@pytest.mark.parametrize("name", [*PLAIN, *SCHEMES, *MORE, *WHOLE])
@pytest.mark.brief(each=("name",))
def test_integers_lose_what_is_said(isa: str, name: str) -> None:
    """Relative root mean square, as `matmul.native_int8` and `native_int16` say; and they do round."""
    n_in = 768 if name in WHOLE else 576
    x, w = normal(np.random.default_rng(0), 17, n_in), weights(name, 33, n_in)
    wide = 0.0075 if name in EXACT else 0.02
    assert wide / 4 < off(x, w, native_int8.matmul(x, w)) < wide
    assert 1e-6 < off(x, w, native_int16.matmul(x, w)) < (6e-5 if name in EXACT else 1.5e-3)


def test_integers_do_not_overflow(isa: str) -> None:
    """Every product the largest there is, of either sign."""
    for sign in (1, -1):
        x = np.full((5, 64), 3.0, np.float32)
        w = np.full((3, 64), sign * 0.7, np.float32)
        for backend in (native_int8, native_int16):
            np.testing.assert_allclose(backend.matmul(x, w), exact(x, w)[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("int8 a row", (0x80, 0x7F)),
        ("mxint8", (0x80, 0x7F)),
        ("int4 a group", (0x88, 0x77)),
        ("mxfp4", (0xFF, 0x77)),
        ("q4_1", (0x00, 0xFF)),
        ("uint4 with zero", (0x00, 0xFF)),
    ],
)
def test_integers_of_packed_weights_do_not_overflow(isa: str, name: str, ends: tuple[int, int]) -> None:
    """All elements at their ends, and activations that are integers of the largest magnitude: of like signs, so that
    sums are the largest there are, of unlike signs, and of any."""
    rng = np.random.default_rng(0)
    signs = rng.choice([-1, 1], (3, 576))
    signs[1], signs[2] = 1, -1
    x = (3 * signs).astype(np.float32)
    w = weights(name, 70, 576)
    codes = rng.choice(np.array(ends, np.uint8), w.codes.shape)
    codes[1], codes[2] = ends
    w = replace(w, codes=codes.view(w.codes.dtype))
    want, bound = exact(x, w)
    for backend in (native_int8, native_int16):
        assert (np.abs(np.asarray(backend.matmul(x, w, out_dtype=np.float32)) - want) <= 4 * bound).all()


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", ["mxfp4", "mxint8"])
def test_how_units_are_multiplied_makes_no_difference(isa: str, bits: int, name: str) -> None:
    """Exponents of powers of two are added where all units are far from the ends of float32, and nowhere else."""
    x, w = normal(np.random.default_rng(0), 23, 800), weights(name, 70, 800)
    x[2, 32:96], x[3] = 0, 0
    (moderate,) = map(np.asarray, ffi.grouped(jnp.asarray(x), None, [w], bits))
    assert (moderate[3] == 0).all()
    assert (np.delete(moderate, 3, 0) != 0).all()
    for extreme in (1e-30, 1e30, 1e-36, 1e-42, np.nan):
        beside = np.concatenate([x, np.full((1, 800), extreme, np.float32)])
        found = np.asarray(ffi.grouped(jnp.asarray(beside), None, [w], bits)[0])
        assert np.array_equal(found[:-1], moderate)
        largest = 1.01 * extreme * np.abs(values(w, np.float32)).sum(1)
        assert np.isnan(found[-1]).all() if np.isnan(extreme) else (np.abs(found[-1]) <= largest).all()
    for extreme in (0, 20, 230, 255):
        scales = np.array(w.scales)
        scales.view(np.uint8)[-1, -1] = extreme
        beside = ffi.grouped(jnp.asarray(x), None, [replace(w, scales=scales)], bits)[0]
        assert np.array_equal(np.asarray(beside)[:, :-1], moderate[:, :-1])


def test_what_is_not_finite_stays_in_its_row(best_too: str) -> None:
    x, w = normal(np.random.default_rng(0), 9, 64), weights("mxfp4", 5, 64)
    x[2, 40], x[3, 1], x[4] = np.nan, np.inf, 0
    for backend in (native, native_int8, native_int16):
        found = np.asarray(backend.matmul(x, w))
        assert not np.isfinite(found[2:4]).any()
        assert (found[4] == 0).all()
        assert np.isfinite(np.delete(found, [2, 3], 0)).all()


def test_an_infinite_scale_is_one_of_what_is_there(isa: str) -> None:
    """The last block of a row that fills no whole register: what lies behind it does not count."""
    for form, n_in in ((Scheme("int8", 32, "f32"), 96), (Scheme("int4", 24, "f32"), 72)):
        w = quantized(form, (3, n_in))
        scales = np.array(w.scales)
        scales[1, -1] = np.inf
        w = replace(w, codes=np.full_like(w.codes, 0x11), scales=scales)
        for dtype in (np.float32, BF16):
            found = np.asarray(native.matmul(np.ones((9, n_in), dtype), w, out_dtype=np.float32))
            assert (found[:, 1] == np.inf).all()
            assert np.isfinite(found[:, [0, 2]]).all()

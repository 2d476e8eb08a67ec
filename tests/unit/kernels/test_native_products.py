"""Products of a few rows in C++: with every instruction set, what float64 gives of weights in every format and size."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pipeline.ops import Kernel
from pipeline.tensors.scheme import ELEMENT_BITS, MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.testing.model_op import agree
from plugins.kernels.cases import NOT_FINITE, not_finite
from plugins.kernels.dequantize.numpy import dequantize
from plugins.kernels.matmul import native as native_matmul
from plugins.kernels.matmul import reference as matmul_reference
from plugins.kernels.moe import native as native_moe
from plugins.kernels.moe import reference as moe_reference
from plugins.kernels.native import ffi, library, scheme
from tests.cases.native import BEST, instruction_set, needs_compiler
from tests.cases.quantized import quantized

BF16 = ml_dtypes.bfloat16
MATMUL = Kernel("matmul", ("native",))

pytestmark = needs_compiler


@pytest.fixture(params=(*library.ISAS, BEST))
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return instruction_set(request.param, monkeypatch)


def schemes(n: int) -> Iterator[Scheme]:
    """Every element under every kind of scale; blocks of every size that rows of `n` can have, here or there."""
    scales = (
        ("e8m0", None), ("e4m3", "f32"), ("e4m3", "inverse_f32"), ("f16", None), ("bf16", "f32"), ("f32", None),
        ("dynamic8", "dynamic8"),
    )  # fmt: skip
    blocks = itertools.cycle([(1, 32), (1, 16), (3, 64), (1, 0), (0, 0), (1, 20), (5, 1), (2, 128), (1, 8), (1, 256)])
    for element, (scale, second) in itertools.product(ELEMENT_BITS, scales):
        zeros = (None,) if not element.startswith("uint") else () if scale == "e8m0" else ("int", "min_f16")
        for zero in zeros:
            for _ in range(3):
                rows, elems = next(blocks)
                found = Scheme(element, elems, scale, rows, zero, second)
                if found.problem((9, n)) is None:
                    yield found


def finite(scheme: Scheme, shape: tuple[int, ...], seed: int) -> Any:
    q = quantized(scheme, shape, seed)
    if scheme.element == "e5m2":
        q.codes[(q.codes & 0x7C) == 0x7C] ^= 0x40
    return q


def off_by_more_than_sums(n: int, counts: dict[int, int], dtype: Any) -> list[TensorSpec]:
    """Formats whose products are off by more than a sum of float32 is, in one call over all of them; outputs of
    different widths. Of six rows of activations, `counts` are assigned to each expert.

    The bound is that of a float32 sum of n products in 8 or 16 lanes, as loose as 32 roundings.
    """
    rng = np.random.default_rng(n)
    x = rng.standard_normal((6, n)).astype(dtype)
    expert = rng.permutation(np.repeat([*counts], [*counts.values()]).astype(np.int32))
    stacks: list[Any] = [finite(s, (6, 5 + i % 7, n), i) for i, s in enumerate(schemes(n))]
    stacks += [rng.standard_normal((6, 4 + i, n)).astype(d) for i, d in enumerate((np.float32, BF16, np.float16))]
    assert n < 1280 or len(stacks) > 100
    found = jax.jit(partial(ffi.grouped))(x, expert, stacks)
    wrong = []
    for w, y in zip(stacks, found, strict=True):
        values = (w if isinstance(w, np.ndarray) else dequantize(w, "F32")).astype(np.float64)
        largest = np.abs(values)
        if not isinstance(w, np.ndarray) and w.zeros is not None:  # elements and zero points are summed apart
            largest += np.abs(dequantize(replace(w, zeros=0 * w.zeros), "F32").astype(np.float64))
        rows = x.astype(np.float64)[np.arange(len(expert)) // (len(expert) // 6)]
        want = np.einsum("an,aon->ao", rows, values[expert])
        bound = np.einsum("an,aon->ao", np.abs(rows), largest[expert])
        want[expert < 0] = bound[expert < 0] = 0
        if not (np.abs(np.asarray(y) - want) <= 32 * 2.0**-24 * bound).all():
            wrong.append(ffi.spec_of(w))
    return wrong


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize(("n", "few"), [(8, True), (40, True), (192, True), (192, False), (1280, True)])
@pytest.mark.brief(each=("isa", "dtype"))
def test_every_format(isa: str, n: int, few: bool, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts with no assignment and with one to six. Rows count as few, whose products are taken from codes, or as
    many, for which weights are decoded first."""
    monkeypatch.setattr(scheme, "few_rows", lambda *_: scheme.FEW_ROWS * few)
    assert not off_by_more_than_sums(n, {-1: 2, 0: 1, 1: 2, 2: 3, 3: 4, 5: 6}, dtype)


@pytest.mark.parametrize("n", [8, 40, 192, 1280])
@pytest.mark.brief(each=("isa",))
def test_every_format_of_up_to_eight_rows_at_a_time(isa: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of five to eight, which share a pass over wide weights; and of nine, one of which has its own."""
    monkeypatch.setattr(scheme, "few_rows", lambda *_: scheme.MORE_ROWS)
    assert not off_by_more_than_sums(n, {-1: 1, 0: 5, 1: 6, 2: 7, 3: 8, 5: 9}, np.float32)


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_many_of_one_expert_are_multiplied_as_each_alone(isa: str, dtype: Any) -> None:
    """Where no kernel takes more rows at a time, all have the one that is best for few: bits are the same."""
    x, w = np.random.default_rng(0).standard_normal((6, 704)).astype(dtype), finite(MXFP4, (2, 9, 704), 0)
    together = np.asarray(ffi.grouped(x, np.ones(6, np.int32), [w])[0])
    alone = [np.asarray(ffi.grouped(row[None], np.ones(1, np.int32), [w])[0])[0] for row in x]
    np.testing.assert_array_equal(together, alone)


def test_as_many_rows_as_are_quicker_share_a_pass() -> None:
    """Of float32 activations alone, for wide elements; with AVX2 for integers of four bits in blocks that it takes."""
    schemes = [Scheme("int8", 32, "f16"), *(Scheme("int4", block, "f16") for block in (32, 16, 64, 0))]
    specs = [TensorSpec((8, 64), "BF16"), *(TensorSpec((8, 64), "F32", s) for s in schemes)]
    for isa in library.ISAS:
        more = 8 if isa == "avx2" else 4
        assert [scheme.few_rows(w, True, isa) for w in specs] == [8, 8, more, 4, 4, 4]
        assert [scheme.few_rows(w, False, isa) for w in specs] == [4] * 6


@pytest.mark.parametrize("element", ["e4m3", "e5m2", "mxint8", "int8"])
def test_every_code_of_eight_bits(isa: str, element: str) -> None:
    """Columns one by one, of up to four rows of activations at a time."""
    most = {"e4m3": 0x7E, "e5m2": 0x7B}.get(element, 0x7F)
    w = finite(Scheme(element, 32, "f32"), (4, 64), 0)
    codes = np.arange(256, dtype=np.uint8).reshape(4, 64)
    codes[(codes & 0x7F) > most] = 0  # beside what is not finite, nothing else would be seen
    w.codes[...], w.scales[...] = codes.view(w.codes.dtype), 1
    found = [MATMUL(np.eye(1 + i % 4, 64, i, np.float32), w, out_dtype=np.float32)[0] for i in range(64)]
    np.testing.assert_array_equal(np.stack(found, 1), dequantize(w, "F32"))


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("left", [16, 32, 48, 64, 80, 96])
@pytest.mark.brief(each=("isa", "left"))
def test_rows_end_within_a_group(isa: str, left: int, rows: int, dtype: Any) -> None:
    """Numbers are those of rows with zeros behind them, and what is not finite stays in its row."""
    n = 256 + left
    x = np.random.default_rng(n).standard_normal((rows, 512)).astype(dtype)
    for element, block in itertools.product(("int8", "int4", "uint4", "e2m1", "e4m3", "int2"), (16, 32)):
        if left % block:
            continue
        scheme = Scheme(element, block, "f16", zero="int" if element == "uint4" else None)
        w = finite(scheme, (7, n), left)
        w.scales[2, -1] = np.inf
        longer = finite(scheme, (7, 512), 0)
        for part, own in ((longer.codes, w.codes), (longer.scales, w.scales), (longer.zeros, w.zeros)):
            if part is not None:
                part[...] = 0
                part[:, : own.shape[1]] = own
        found, want = (np.asarray(MATMUL(x[:, : q.shape[1]], q, out_dtype=np.float32)) for q in (w, longer))
        np.testing.assert_array_equal(found, want)
        assert np.isfinite(np.delete(found, 2, axis=1)).all()
        assert not np.isfinite(found[:, 2]).any()


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.brief(each=("isa",))
def test_a_row_is_the_same_alone_and_among_others(isa: str, dtype: Any) -> None:
    x = np.random.default_rng(0).standard_normal((4, 704)).astype(dtype)
    for element in ("int8", "int4", "uint4", "e2m1", "nf4", "e4m3", "int2"):
        w = finite(Scheme(element, 32, "f16", zero="int" if element == "uint4" else None), (7, 704), 0)
        alone = np.concatenate([np.asarray(MATMUL(row[None], w, out_dtype=np.float32)) for row in x])
        for rows in (2, 3, 4):
            np.testing.assert_array_equal(np.asarray(MATMUL(x[:rows], w, out_dtype=np.float32)), alone[:rows])


@pytest.mark.parametrize(
    "scheme",
    [Scheme("int8", 8, "f16"), Scheme("uint4", 16, "bf16", 3, "int"), Scheme("e2m1", 16, "e4m3", second="f32")],
)
def test_more_scales_than_are_turned_to_floats_at_a_time(isa: str, scheme: Scheme) -> None:
    w = finite(scheme, (301, 320), 0)
    x = np.random.default_rng(0).standard_normal((1, 320)).astype(np.float32)
    want = matmul_reference.matmul(x, w)
    np.testing.assert_allclose(MATMUL(x, w), want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def test_several_weights_meet_one_x_in_one_call() -> None:
    """And so do the gradients; numbers are those of calls of their own."""
    rng = np.random.default_rng(0)
    x, bias = rng.standard_normal((2, 64)).astype(np.float32), rng.standard_normal(7).astype(np.float32)
    ws = (rng.standard_normal((7, 64)).astype(np.float32), quantized(MXFP4, (9, 64)), np.ones((5, 64), BF16))
    biases = (bias, None, None)

    def several(x: Any, w: Any) -> list[Any]:
        return MATMUL.together(*((x, w, b) for w, b in zip((w, *ws[1:]), biases, strict=True)))

    def apart(x: Any, w: Any) -> list[Any]:
        return [MATMUL(x, w, b) for w, b in zip((w, *ws[1:]), biases, strict=True)]

    def total(f: Any) -> Any:
        return lambda *args: sum(jnp.sum(jnp.sin(y)) for y in f(*args))

    assert str(jax.make_jaxpr(several)(x, ws[0])).count("ffi_call[") == 1
    assert str(jax.make_jaxpr(apart)(x, ws[0])).count("ffi_call[") == 3
    for found, want in zip(several(x, ws[0]), apart(x, ws[0]), strict=True):
        np.testing.assert_array_equal(found, want)
    slopes = (jax.grad(total(f), (0, 1))(x, ws[0]) for f in (several, apart))
    for found, want in zip(*slopes, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)
    other = MATMUL.together((x, ws[0], None), (x + 1, ws[1], None))
    np.testing.assert_array_equal(other[1], MATMUL(x + 1, ws[1]))


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
@pytest.mark.brief(each=("isa", "dtype"))
def test_matmul_is_that_of_the_definition(isa: str, rows: int, dtype: Any) -> None:
    rng = np.random.default_rng(rows)
    for w in (quantized(MXFP4, (7 + rows, 160)), rng.standard_normal((7 + rows, 37)).astype(BF16)):
        x = rng.standard_normal((rows, w.shape[1])).astype(dtype)
        found = MATMUL(x, w, out_dtype=np.float32)
        want = matmul_reference.matmul(x.astype(np.float32), w, out_dtype=np.float32)
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-4)


def test_moe_is_that_of_the_definition(isa: str) -> None:
    rng = np.random.default_rng(0)
    x, chosen = rng.standard_normal((5, 96)).astype(np.float32), rng.integers(0, 7, (5, 3)).astype(np.int32)
    weights = rng.random((5, 3)).astype(np.float32)
    weights[1, 2] = 0
    gate_bias, bias = (rng.standard_normal((7, n)).astype(np.float32) for n in (64, 50))
    q8_0 = Scheme("int8", 32, "f16")
    w_in = (quantized(MXFP4, (7, 64, 96)), quantized(replace(q8_0, block_rows=3), (7, 64, 96)))
    args = (x, chosen, weights, w_in, (gate_bias, None), quantized(q8_0, (7, 50, 64)), bias)
    activation = lambda a, b: jax.nn.silu(a) * b / 4096  # noqa: E731
    found = jax.jit(partial(native_moe.moe, activation=activation))(*args)
    agree(moe_reference.moe(*args, activation=activation), np.asarray(found))


@pytest.mark.parametrize(
    ("scheme", "component", "value"),
    [
        (MXFP4, "scales", 0xFF),
        (Scheme("e4m3", 32, "e8m0"), "codes", 0x7F),
        (Scheme("e4m3", 0, "f32"), "codes", 0xFF),
        (Scheme("e5m2", 32, "e8m0"), "codes", 0xFE),
        (Scheme("e2m1", 16, "e4m3", second="f32"), "scales", np.nan),
        (Scheme("int4", 16, "f16"), "scales", np.nan),
    ],
    ids=lambda v: f"{v.element}/{v.block_elems}" if isinstance(v, Scheme) else str(v),
)
@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_what_is_no_number_is_none_in_its_row_only(
    isa: str, scheme: Scheme, component: str, value: Any, dtype: Any
) -> None:
    q = finite(scheme, (11, 96), 0)
    if component == "scales":
        q.codes[6] = 0x22  # all of one sign: infinities would not become NaN by themselves
    q.component(component)[6, 0] = value
    found = np.asarray(MATMUL(np.ones((3, 96), dtype), q, out_dtype=np.float32))
    assert np.isnan(found[:, 6]).all()
    assert np.isfinite(np.delete(found, 6, 1)).all()


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("name", NOT_FINITE)
def test_infinite_scales_stay_in_their_blocks(isa: str, name: str, dtype: Any) -> None:
    """The end of a row fills no register, and what fills it up is multiplied with no scale of its neighbours."""
    x, w = not_finite(NOT_FINITE[name], 3)
    found, want = (f(x.astype(dtype), w, out_dtype=np.float32) for f in (MATMUL, matmul_reference.matmul))
    np.testing.assert_array_equal(found, want)


def test_infinity_is_one(isa: str) -> None:
    q = finite(Scheme("e5m2", 32, "e8m0"), (5, 64), 0)
    q.codes[1, 3], q.codes[2, 3] = 0x7C, 0xFC
    found = np.asarray(MATMUL(np.ones((1, 64), np.float32), q))[0]
    assert found[1:3].tolist() == [np.inf, -np.inf]
    assert np.isfinite(found[[0, 3, 4]]).all()


INTEGERS = (
    Scheme("int4", 32, "f16"),
    Scheme("uint4", 32, "f16", zero="int"),
    Scheme("uint4", 0, "f32", zero="min_f16"),
    MXFP4,
    Scheme("int8", 32, "f16"),
    Scheme("uint8", 32, "f16", zero="int"),
    Scheme("mxint8", 0, "f32"),
)


@pytest.fixture(params=["few", "many"])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Kernels for as many, whatever there are."""
    if request.param == "many":
        monkeypatch.setattr(scheme, "few_rows", lambda *_: 0)
    return str(request.param)


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("scheme", INTEGERS, ids=lambda s: s.element)
def test_activations_of_any_size(isa: str, scheme: Scheme, dtype: Any, rows: str) -> None:
    """By way of integers that share a power of two or not: a sum is off by no more than float32 is."""
    rng = np.random.default_rng(5)
    powers = [np.full(704, e) for e in (-100, -30, 0, 30, 110)]
    powers += [rng.integers(-40, 40, 704), np.where(np.arange(704) == 77, 30, -30)]
    x = (rng.standard_normal((len(powers), 704)) * np.exp2(powers)).astype(dtype)
    x[1, :300] = 0
    w = finite(scheme, (9, 704), 0)
    found = np.asarray(MATMUL(x[:4], w, out_dtype=np.float32)), np.asarray(MATMUL(x[4:], w, out_dtype=np.float32))
    exact, plain = x.astype(np.float64), dequantize(w, "F32").astype(np.float64)
    added = np.abs(plain)
    if scheme.zero == "int":  # zeros are taken off the sums
        added += 2 ** ELEMENT_BITS[scheme.element] * added.max()
    most = 1e-6 if rows == "few" else 2e-6  # that add up one after the other
    np.testing.assert_array_less(np.abs(np.concatenate(found) - exact @ plain.T) / (np.abs(exact) @ added.T), most)


@pytest.mark.usefixtures("rows")
def test_scales_and_activations_far_apart(isa: str) -> None:
    """What one is times the other is an ordinary number, or none of the weights counts."""
    ones = finite(MXFP4, (3, 64), 0)
    ones = replace(ones, codes=np.full_like(ones.codes, 0x22))
    for of_scale, of_x in ((-56, -50), (-30, -79), (-100, 60), (100, -79), (90, -60), (-90, 60)):
        w = replace(ones, scales=np.full_like(ones.scales, 127 + of_scale))
        found = np.asarray(MATMUL(np.full((2, 64), 2.0**of_x, np.float32), w, out_dtype=np.float32))
        np.testing.assert_allclose(found, 64 * 2.0 ** (of_scale + of_x), rtol=1e-6)
    nothing = replace(ones, codes=np.zeros_like(ones.codes), scales=np.full_like(ones.scales, 187))
    assert (np.asarray(MATMUL(np.full((1, 64), 2.0**100, np.float32), nothing)) == 0).all()


@pytest.mark.parametrize("scheme", INTEGERS, ids=lambda s: s.element)
@pytest.mark.usefixtures("rows")
def test_the_largest_codes_and_activations_fit_their_sums(isa: str, scheme: Scheme) -> None:
    """Codes that are all alike; activations next to a power of two, and those whose three digits are all 127."""
    ends = np.nextafter(np.float32(2), np.float32(0)), np.float32(0x7F7F7F / 2**22)
    signs = np.stack([np.ones(704), -np.ones(704), np.where(np.arange(704) % 5 < 2, 1, -1)]).astype(np.float32)
    x = np.concatenate([most * signs for most in ends])
    w = finite(scheme, (6, 704), 0)
    for row, byte in enumerate((0x00, 0x77, 0x7F, 0x80, 0x88, 0xFF)):
        w.codes[row] = byte
    exact = x.astype(np.float64) @ dequantize(w, "F32").astype(np.float64).T
    np.testing.assert_allclose(np.asarray(MATMUL(x, w)), exact, rtol=3e-6, atol=3e-6 * np.abs(exact).max())


@pytest.mark.parametrize("wrong", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("scheme", INTEGERS, ids=lambda s: s.element)
def test_activations_that_are_not_finite_stay_in_their_rows(isa: str, scheme: Scheme, wrong: float, rows: str) -> None:
    x = np.random.default_rng(6).standard_normal((4, 704)).astype(np.float32)
    w = finite(scheme, (9, 704), 0)
    want = np.asarray(MATMUL(x, w, out_dtype=np.float32))
    x[1, 650] = wrong
    found = np.asarray(MATMUL(x, w, out_dtype=np.float32))
    others = np.array([0, 2, 3])
    np.testing.assert_array_equal(found[others], want[others])
    if scheme.zero == "int" and rows == "few":  # the sum of activations is taken off: infinity less infinity
        assert np.isnan(found[1]).all()
        return
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found[1], x[1] @ dequantize(w, "F32").T)


@pytest.mark.usefixtures("rows")
def test_the_least_power_of_two_counts_as_nothing(isa: str) -> None:
    """Scale byte 0 is 2^-127, which XLA's threads flush; as `matmul.planes` has it."""
    q = quantized(MXFP4, (3, 64))
    q.scales[:, 1] = 0
    x = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    want = matmul_reference.matmul(x[:, :32], quantized_part(q))
    np.testing.assert_allclose(MATMUL(x, q), want, rtol=1e-5, atol=1e-5)


def quantized_part(q: Any) -> Any:
    """The first block of each row."""
    return replace(q, codes=q.codes[:, :16], scales=q.scales[:, :1])


@pytest.mark.parametrize("scheme", [MXFP4, Scheme("uint4", 1, "f32", 4, "int")], ids=["lanes", "any blocks"])
def test_numbers_do_not_depend_on_who_does_the_work(scheme: Scheme) -> None:
    """Every row of the result is one thread's, whatever the number of threads, and the same as when it is alone."""
    w = quantized(scheme, (3, 1000, 256))
    x = np.random.default_rng(0).standard_normal((1, 256)).astype(np.float32)
    expert = np.array([1], np.int32)
    first = np.asarray(ffi.grouped(x, expert, [w])[0])
    for _ in range(20):
        assert np.array_equal(np.asarray(ffi.grouped(x, expert, [w])[0]), first)
    per = scheme.block_rows

    def some(r: int) -> Any:
        at = slice(r // per, (r + 4) // per)
        zeros = None if w.zeros is None else w.zeros[:, at]
        return replace(w, codes=w.codes[:, r : r + 4], scales=w.scales[:, at], zeros=zeros)

    alone = np.concatenate([np.asarray(ffi.grouped(x, expert, [some(r)])[0]) for r in (0, 500, 996)], 1)
    assert np.array_equal(alone, first[:, [*range(4), *range(500, 504), *range(996, 1000)]])


def test_batches_are_calls_one_after_another() -> None:
    x = np.random.default_rng(0).standard_normal((3, 2, 64)).astype(np.float32)
    q = quantized(MXFP4, (3, 7, 64))
    together = jax.jit(jax.vmap(MATMUL))(x, q)
    shared = jax.jit(jax.vmap(MATMUL, in_axes=(0, None)))(x, jax.tree.map(lambda a: a[1], q))
    for i in range(3):
        one = jax.tree.map(lambda a, i=i: a[i], q)
        np.testing.assert_array_equal(together[i], MATMUL(x[i], one))
    np.testing.assert_array_equal(shared[2], MATMUL(x[2], jax.tree.map(lambda a: a[1], q)))


def test_each_device_multiplies_what_it_has() -> None:
    """Rows of weights over two devices."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("out",))
    x = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    q = quantized(MXFP4, (10, 64))
    parts = jax.jit(
        jax.shard_map(MATMUL, mesh=mesh, in_specs=(P(), P("out")), out_specs=P(None, "out"), check_vma=False)
    )
    np.testing.assert_array_equal(parts(x, q), MATMUL(x, q))


def test_an_exported_program_names_the_handler() -> None:
    """`jax.export` wants to be told that the handler is kept by whoever runs the program."""
    x, q = np.ones((2, 64), np.float32), quantized(MXFP4, (10, 64))
    check = jax.export.DisabledSafetyCheck.custom_call(ffi.registered("ffi", "wm_grouped"))
    program = jax.export.export(jax.jit(MATMUL), disabled_checks=[check])(x, q)
    np.testing.assert_array_equal(program.call(x, q), MATMUL(x, q))


def test_shapes_that_do_not_go_together_are_an_error() -> None:
    w = jnp.ones((2, 3, 8))
    with pytest.raises(Exception, match="not of shapes that go together"):
        ffi.grouped(jnp.ones((1, 7)), np.zeros(1, np.int32), [w])[0].block_until_ready()
    with pytest.raises(Exception, match="assignments are not as many for each row of x"):
        ffi.grouped(jnp.ones((2, 8)), np.zeros(3, np.int32), [w])[0].block_until_ready()


def test_weights_that_are_no_floats_are_declined() -> None:
    x = np.ones((1, 8), np.float32)
    reasons = MATMUL.resolve(x, np.ones((3, 8), np.float64)).reasons
    assert "F64 weights are not among F32, BF16, F16" in reasons


def test_matmul_of_nothing() -> None:
    assert native_matmul.matmul(np.ones((0, 8), np.float32), np.ones((3, 8), np.float32)).shape == (0, 3)
    assert native_matmul.matmul(np.ones((2, 8), np.float32), np.ones((0, 8), np.float32)).shape == (2, 0)
    none = native_matmul.matmul(np.ones((2, 0), np.float32), np.ones((5, 0), np.float32))
    np.testing.assert_array_equal(none, np.zeros((2, 5), np.float32))

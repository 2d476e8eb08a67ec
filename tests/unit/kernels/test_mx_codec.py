"""The MXFP4 codec: every backend against hand-worked cases and the search oracle, layouts, errors, measurement."""

import itertools
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

from pipeline.errors import ConfigError, PlanError, StageError, ValueRangeError
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.stats import ErrorStats
from plugins.kernels.quantize import mxfp4
from plugins.kernels.quantize.mxfp4 import tile
from plugins.quant.none import Unquantized
from tests.cases.mx import CASES, NONFINITE, RULES, TIES, mx_method
from tests.oracles import mx

BF16 = ml_dtypes.bfloat16
BACKENDS = ("reference", "numpy")


def unpack(packed):
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def quantizer(backend):
    return Kernel("quantize", (backend,))


def same(a, b):
    return np.array_equal(a.codes, b.codes) and np.array_equal(a.scales, b.scales)


def spread(shape, seed=0):
    """bfloat16 values whose rows have exponents from one end of the range to the other."""
    rng = np.random.default_rng(seed)
    exponents = rng.integers(-134, 126, (*shape[:-1], 1)) if len(shape) > 1 else 0
    return (rng.standard_normal(shape) * np.exp2(exponents) * 0.2).astype(BF16)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [BF16, np.float32])
def test_case(backend, case, rule, dtype):
    block = np.array(case.block, np.float64).astype(dtype)
    q = quantizer(backend)(block, MXFP4, scale_rule=rule, overflow="inf")
    if case.scale(rule) >= 0:
        assert q.scales.tolist() == [case.scale(rule)]
    if (expected := case.expected(rule)) is not None:
        assert unpack(q.codes)[: len(expected)].tolist() == expected
    codes, scales = mx.encode(block, rule)
    assert (unpack(q.codes).tolist(), q.scales.tolist()) == (codes.tolist(), scales.tolist())


def test_nibble_order():
    block = np.zeros(32, BF16)
    block[:4] = [1.0, 2.0, -4.0, 0.5]  # codes 2, 4, 14, 1
    for backend in BACKENDS:
        assert quantizer(backend)(block, MXFP4).codes.tolist()[:2] == [0x42, 0x1E]
        packed = QTensor(np.array([0x42, 0x1E] + [0] * 14, np.uint8), np.array([127], np.uint8), MXFP4)
        assert Kernel("dequantize", (backend,))(packed).tolist()[:4] == [1.0, 2.0, -4.0, 0.5]


def every_pattern():
    """Finite bfloat16 patterns in blocks, by arrangement."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    patterns = patterns[(patterns & 0x7FFF) < 0x7F80].view(BF16)  # 65,280 = 2040 blocks
    yield "by value", patterns.reshape(-1, 32)
    yield "shuffled", np.random.default_rng(1).permutation(patterns).reshape(-1, 32)
    yield "one of each binade", np.ascontiguousarray(patterns.reshape(32, -1).T)
    # Every mantissa of amax with every value that can meet a boundary under it.
    tops = (np.arange(128, dtype=np.uint16) | 127 << 7).view(BF16)
    below = (np.arange(31 * 22, dtype=np.uint16) + (127 << 7) + 128 - 31 * 22).view(BF16).reshape(1, 22, 31)
    signs = np.where(np.arange(31) % 2, -1, 1).astype(BF16)
    capped = np.minimum(np.broadcast_to(below, (128, 22, 31)), tops[:, None, None]) * signs
    yield "every amax", np.concatenate([np.broadcast_to(tops[:, None, None], (128, 22, 1)), capped], axis=-1)


@pytest.mark.parametrize(("rule", "ties"), list(itertools.product(RULES, TIES)))
def test_every_pattern_against_the_oracle(rule, ties):
    for name, x in every_pattern():
        codes, scales = mx.encode(x, rule, ties)
        q = quantizer("numpy")(x, MXFP4, scale_rule=rule, ties=ties, overflow="inf")
        assert np.array_equal(q.scales, scales), name
        assert np.array_equal(unpack(q.codes), codes), name


@pytest.mark.parametrize(("rule", "ties", "zero", "tiny"), [
    ("floor", "even", "signed", "spec"), ("ceil", "zero", "positive", "torchao"), ("even", "away", "signed", "torchao"),
    ("rceil", "even", "positive", "torchao"), ("rceil", "zero", "signed", "spec"),
])  # fmt: skip
def test_backends_agree(rule, ties, zero, tiny):
    options = {"scale_rule": rule, "ties": ties, "zero": zero, "tiny": tiny, "nonfinite": "poison", "overflow": "inf"}
    patterns = np.arange(1 << 16, dtype=np.uint16).view(BF16)
    for x in (patterns, np.random.default_rng(2).permutation(patterns), spread((40, 64))):
        x = x.reshape(-1, 32)
        assert same(*(quantizer(b)(x, MXFP4, **options) for b in BACKENDS))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_wider_mantissas_near_every_boundary(dtype):
    """One unit in the last place on each side of every boundary of every rule: what rounding to bfloat16 would lose."""
    edges = np.array([0.25, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8], dtype)
    near = np.concatenate([np.nextafter(edges, dtype(0)), edges, np.nextafter(edges, dtype(9))])
    tops = near[near >= 4]
    x = np.zeros((len(tops), 64), dtype)
    x[:, : len(near)] = np.minimum(near, tops[:, None])
    x[:, ::3] *= -1
    x[:, 0] = x[:, 32] = tops
    for rule, ties, backend in itertools.product(RULES, TIES, BACKENDS):
        codes, scales = mx.encode(x, rule, ties)
        q = quantizer(backend)(x, MXFP4, scale_rule=rule, ties=ties)
        assert np.array_equal(q.scales, scales)
        assert np.array_equal(unpack(q.codes), codes)


def test_positive_zero_rule():
    x = np.zeros((1, 32), BF16)
    x[0, :5] = [4, -0.25, -0.26, 0.1, -0.0]
    for backend in BACKENDS:
        q = quantizer(backend)(x, MXFP4, zero="positive")
        assert unpack(q.codes)[0, :5].tolist() == [6, 0, 9, 0, 0]


def layouts(x):
    """The same `[experts, rows, n]` values in other memory."""
    wide = np.zeros((*x.shape[:-1], 200), x.dtype)
    wide[..., 50 : 50 + x.shape[-1]] = x
    yield "padded rows", wide[..., 50 : 50 + x.shape[-1]]
    yield "transposed experts", np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
    yield (
        "wide transposed",
        np.ascontiguousarray(np.concatenate([x.swapaxes(1, 2)] * 2, 2)).swapaxes(1, 2)[:, : x.shape[1]],
    )
    yield "experts last", np.ascontiguousarray(x.transpose(1, 2, 0)).transpose(2, 0, 1)
    yield "every other row", np.repeat(x, 2, axis=1)[:, ::2]
    yield "reversed", np.ascontiguousarray(x[::-1, ::-1, ::-1])[::-1, ::-1, ::-1]
    yield "fortran", np.asfortranarray(x)


@pytest.mark.parametrize("elems", [32, 160, 4096, 1 << 19])
@pytest.mark.parametrize("dtype", [BF16, np.float32])
@pytest.mark.brief(each=("elems",))
def test_layouts_and_tile_sizes(monkeypatch, elems, dtype):
    """No layout and no cut changes a byte or, beyond summation order, a sum."""
    x = spread((6, 128, 96)).astype(dtype)
    want, stats = quantizer("numpy")(x, MXFP4, measure=True)
    monkeypatch.setattr(tile, "TILE", elems)
    monkeypatch.setattr(mxfp4, "_local", threading.local())
    for name, view in [("as is", x), *layouts(x)]:
        assert np.array_equal(view, x)
        q, s = quantizer("numpy")(view, MXFP4, measure=True)
        assert same(q, want), name
        assert s.count == stats.count
        assert np.allclose(s.to_json(), stats.to_json(), rtol=1e-5, atol=0), name


def test_shapes():
    for shape in [(32,), (0, 32), (2, 0, 64), (1, 1, 32), (3, 5, 2, 64)]:
        x = np.ones(shape, BF16)
        for backend in BACKENDS:
            if not x.size and backend == "numpy":
                with pytest.raises(StageError, match="numpy goes over the elements of an array, and this one has none"):
                    quantizer(backend)(x, MXFP4)
            q, stats = quantizer(backend if x.size else "reference")(x, MXFP4, measure=True)
            assert {"codes": q.codes.shape, "scales": q.scales.shape} == MXFP4.components(shape)
            assert (q.shape, stats.count, stats.sq_error) == (shape, x.size, 0)
            assert np.array_equal(Kernel("dequantize", (backend,))(q), x)


def test_other_block_sizes():
    x = spread((8, 192))
    for block in (2, 16, 64, 96):
        scheme = Scheme("e2m1", block, "e8m0")
        (a, sa), (b, sb) = (quantizer(n)(x, scheme, measure=True) for n in BACKENDS)
        assert same(a, b)
        assert np.allclose(sa.to_json(), sb.to_json(), rtol=1e-5)
        assert np.array_equal(*(Kernel("dequantize", (n,))(a, "F32") for n in BACKENDS))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NONFINITE)
@pytest.mark.parametrize("dtype", [BF16, np.float32, np.float16])
def test_nonfinite(backend, name, dtype):
    values, at = NONFINITE[name]
    x = np.ones((128, 64), dtype)
    x[3, 32 : 32 + len(values)] = values
    for view in (x, np.ascontiguousarray(x.T).T):
        with pytest.raises(ValueRangeError, match=f"^flat index {3 * 64 + 32 + at}: "):
            quantizer(backend)(view, MXFP4)
        q, stats = quantizer(backend)(view, MXFP4, nonfinite="poison", measure=True)
        assert np.argwhere(q.scales == 255).tolist() == [[3, 1]]
        assert not q.codes[3, 16:].any()
        decoded = Kernel("dequantize", (backend,))(q)
        assert np.isnan(decoded[3, 32:]).all()
        assert np.isnan(decoded).sum() == 32
        assert (stats.count, stats.sq_error) == (x.size - 32, 0)


def test_nan_that_only_float32_can_tell():
    x = np.zeros(32, np.float32)
    x.view(np.uint32)[5] = 0x7F800001  # its upper half is bfloat16's infinity
    for backend in BACKENDS:
        with pytest.raises(ValueRangeError, match="flat index 5"):
            quantizer(backend)(x, MXFP4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["BF16", "F32", "F16"])
def test_every_byte_under_every_scale_decodes(backend, dtype):
    codes = np.broadcast_to(np.arange(256, dtype=np.uint8), (256, 256))
    q = QTensor(codes, np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None], (256, 16)), MXFP4)
    want = mx.decode(unpack(codes), q.scales)
    got = Kernel("dequantize", (backend,))(q, dtype, **({"overflow": "clamp"} if dtype == "F16" else {}))
    with np.errstate(over="ignore"):
        want = np.clip(want, -65504, 65504).astype(np.float16) if dtype == "F16" else want.astype(np.float32)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.isnan(got[255]).all()
    finite = ~np.isnan(want)
    assert np.array_equal(got.astype(np.float32)[finite], want.astype(np.float32)[finite])
    assert np.array_equal(np.signbit(got)[finite], np.signbit(want)[finite])


@pytest.mark.parametrize("backend", BACKENDS)
def test_f16_overflow_is_an_error(backend):
    codes, scales = np.zeros((2, 32), np.uint8), np.full((2, 2), 127 + 14, np.uint8)
    codes[1, 20] = 0x50  # 3 · 2^14 fits
    q = QTensor(codes, scales, MXFP4)
    assert Kernel("dequantize", (backend,))(q, "F16")[1, 41] == 3 * 2**14
    codes[1, 20] = 0xE0  # -4 · 2^14 = -65536 does not
    with pytest.raises(ValueRangeError, match="flat index 105:"):
        Kernel("dequantize", (backend,))(q, "F16")
    assert Kernel("dequantize", (backend,))(q, "F16", overflow="clamp")[1, 41] == -65504


def test_dequantize_reads_any_layout():
    x = spread((4, 64, 96))
    q = mx_method().encode(x)
    view = QTensor(q.codes.repeat(2, axis=1)[:, ::2], q.scales.repeat(3, axis=2)[..., ::3], MXFP4)
    assert np.array_equal(mx_method().decode(view), mx_method().decode(q))
    part = QTensor(q.codes[:, :, 16:32], q.scales[:, :, 1:2], MXFP4)
    assert np.array_equal(mx_method().decode(part, "F32"), mx_method().decode(q, "F32")[:, :, 32:64])


@pytest.mark.parametrize("dtype", [BF16, np.float32, np.float16])
@pytest.mark.parametrize("rule", RULES)
def test_measured_is_what_decoding_says(rule, dtype):
    rng = np.random.default_rng(4)
    for x in (rng.normal(0, 0.02, (300, 320)), rng.normal(0, 0.02, (40, 64)) * np.exp2(rng.integers(-9, 9, (40, 1)))):
        x = x.astype(dtype)
        for view in (x, np.ascontiguousarray(x.T).T):
            q, stats = quantizer("numpy")(view, MXFP4, scale_rule=rule, measure=True)
            want = ErrorStats.between(x.astype(np.float32), Kernel("dequantize", ("numpy",))(q, "F32"))
            assert (stats.count, stats.max_abs) == (want.count, want.max_abs)
            assert np.allclose(stats.to_json(), want.to_json(), rtol=1e-6, atol=0)


def test_exact_values_measure_no_error():
    rng = np.random.default_rng(5)
    q = QTensor(rng.integers(0, 256, (64, 32), np.uint8), rng.integers(0, 252, (64, 2), np.uint8), MXFP4)
    q.codes[:, ::16] = 0x67  # a block's amax is 6 times its scale
    again, stats = mx_method().encode(mx_method().decode(q), measure=True)
    assert same(again, q)
    assert (stats.sq_error, stats.max_abs) == (0, 0)


def test_tiny_blocks_beside_large_ones_measure_exactly():
    x = np.zeros((2, 64), BF16)
    x[0, :3], x[0, 32:35] = [4, 1, -3], [4 * 2.0**-127, 2.0**-128, -(2.0**-126)]
    for view in (x, np.repeat(x, 64, axis=0), np.ascontiguousarray(np.repeat(x, 64, axis=0).T).T):
        for backend in BACKENDS:
            stats = quantizer(backend)(view, MXFP4, measure=True)[1]
            assert (stats.count, stats.max_abs, stats.sq_error) == (view.size, 0, 0)


def test_nonfinite_in_a_later_expert():
    x = np.ones((3, 64, 96), BF16)
    x[2, 5, 7] = np.nan
    x[2, 4, 50] = np.inf  # the first in the tensor's order, not in memory's
    for _, view in [("as is", x), *layouts(x)]:
        with pytest.raises(ValueRangeError, match=f"^flat index {(2 * 64 + 4) * 96 + 50}: inf"):
            quantizer("numpy")(view, MXFP4)


@pytest.mark.parametrize(("rule", "db"), [("floor", 18.82), ("ceil", 17.25), ("rceil", 18.51), ("even", 18.99)])
def test_known_sqnr(rule, db):
    """On 4096 × 32 values of N(0, 0.02)."""
    x = np.random.default_rng(0).normal(0, 0.02, (4096, 32)).astype(np.float32)
    assert mx_method(scale_rule=rule).encode(x, measure=True)[1].sqnr_db == pytest.approx(db, abs=0.02)


def test_threads_do_not_change_anything():
    parts = [spread((256, 512), seed) for seed in range(8)]
    encode = mx_method().encode
    alone = [encode(p, measure=True) for p in parts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda p: encode(p, measure=True), parts))
    for (a, sa), (b, sb) in zip(alone, together, strict=True):
        assert same(a, b)
        assert sa == sb


@pytest.mark.parametrize("transposed", [False, True])
def test_memory_is_bounded(transposed):
    x = np.zeros((2048, 4096), BF16)
    x[:] = np.arange(4096)
    x = x.T if transposed else x
    q = mx_method().encode(x, measure=True)[0]
    tracemalloc.start()
    mx_method().encode(x, measure=True)
    encode_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    mx_method().decode(q)
    decode_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert encode_peak - q.nbytes < 8 << 20
    assert decode_peak - x.nbytes < 4 << 20


def test_method_says_what_is_wrong():
    assert mx_method().scheme == MXFP4
    for bad in (
        {"scale_rule": "round"}, {"ties": "odd"}, {"nonfinite": "ignore"}, {"zero": "negative"}, {"tiny": "yes"},
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            mx_method(**bad)
    for bad in ({"element": "e2m2"}, {"block_elems": -3}):
        with pytest.raises(PlanError, match=f"{next(iter(bad))}: .*allowed"):
            mx_method(**bad)
    with pytest.raises(ConfigError, match="not a multiple of the block"):
        mx_method().encode(np.zeros((4, 48), BF16))
    with pytest.raises(ConfigError, match="scalar"):
        mx_method().encode(np.zeros((), BF16))
    with pytest.raises(ConfigError, match="dtype 'F8_E4M3'"):
        mx_method().decode(mx_method().encode(np.zeros(32, BF16)), "F8_E4M3")


def test_unquantized_decodes():
    x = np.ones(32, BF16)
    assert Unquantized().scheme is None
    assert np.array_equal(Unquantized().decode(mx_method().encode(x), "F32"), x)

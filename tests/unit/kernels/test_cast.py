"""Casts: every pattern of the 16-bit formats, and the neighbourhoods of everything that rounds in the wide ones."""

import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from pipeline.errors import ConfigError, ValueRangeError
from pipeline.ops import Kernel
from pipeline.tensors.spec import numpy_dtype
from plugins.kernels.cast import DTYPES

BF16 = ml_dtypes.bfloat16
BACKENDS = ("reference", "numpy")
UINT = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32, "F64": np.uint64}
cast = Kernel("cast", ("numpy",))


def every16(dtype):
    return np.arange(1 << 16, dtype=np.uint16).view(dtype)


def wide_values():
    """float32 values at, beside and between the values and midpoints of both 16-bit formats; NaNs; random patterns."""
    rng = np.random.default_rng(0)
    top = np.arange(1 << 16, dtype=np.uint32)[::7] << 16
    bits = np.concatenate([top | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    halves = np.arange(1 << 16, dtype=np.uint16)[::3].view(np.float16).astype(np.float32).view(np.uint32)
    halves = np.concatenate([halves, halves | 0x0FFF, halves | 0x1000, halves | 0x1001])
    return np.concatenate([bits, halves, rng.integers(0, 1 << 32, 20_000, np.uint32)]).view(np.float32)


def double_values():
    """float64 values a hair off float32 ties, where rounding twice goes wrong; NaNs; random patterns."""
    rng = np.random.default_rng(1)
    with np.errstate(invalid="ignore"):
        near = wide_values().astype(np.float64).view(np.uint64)[::3]
    bits = np.concatenate([near, near + 1, near - 1, rng.integers(0, 1 << 64, 10_000, np.uint64)])
    return bits.view(np.float64)


SOURCES = {
    "BF16": lambda: every16(BF16), "F16": lambda: every16(np.float16), "F32": wide_values, "F64": double_values,
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("given", SOURCES)
def test_backends_agree_on_every_bit(given, dtype, thorough):
    """In `make test`, of wide values every eleventh."""
    x = SOURCES[given]()
    x = x if thorough or x.itemsize == 2 else x[::11]
    for overflow in ("clamp", "inf"):
        a, b = (Kernel("cast", (n,))(x, dtype, overflow=overflow) for n in BACKENDS)
        assert np.array_equal(a.view(UINT[dtype]), b.view(UINT[dtype]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_bf16_to_f32_moves_the_bits(backend):
    wide = Kernel("cast", (backend,))(every16(BF16), "F32")
    assert np.array_equal(wide.view(np.uint32), np.arange(1 << 16, dtype=np.uint32) << 16)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(wide, every16(BF16).astype(np.float32), equal_nan=True)
    assert np.array_equal(cast(wide, "BF16").view(np.uint16) | 0x40, np.arange(1 << 16) | 0x40)  # back, but for quiet


def test_narrowing_against_other_libraries():
    """ml_dtypes rounds float32 to bfloat16, NumPy to float16; neither is asked about NaN or overflow."""
    x = wide_values()
    with np.errstate(invalid="ignore", over="ignore"):
        for dtype in ("BF16", "F16"):
            want, got = x.astype(numpy_dtype(dtype)), cast(x, dtype, overflow="inf")
            number = ~np.isnan(x)
            assert np.array_equal(got.view(np.uint16)[number], want.view(np.uint16)[number])
            assert np.isnan(got[~number].astype(np.float32)).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_float64_rounds_once(backend):
    x = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, 1 + 3 * 2.0**-8 - 2.0**-40])
    assert Kernel("cast", (backend,))(x, "BF16").astype(np.float64).tolist() == [1 + 2.0**-7, 1, 1 + 2.0**-7]


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_keeps_sign_and_payload(backend):
    x = np.array([0x7FC00000, 0xFFC12345, 0x7F800001, 0xFFABCDEF], np.uint32).view(np.float32)
    for dtype, want in (("BF16", [0x7FC0, 0xFFC1, 0x7FC0, 0xFFEB]), ("F16", [0x7E00, 0xFE09, 0x7E00, 0xFF5E])):
        assert Kernel("cast", (backend,))(x, dtype).view(np.uint16).tolist() == want


@pytest.mark.parametrize("backend", BACKENDS)
def test_overflow(backend):
    run = Kernel("cast", (backend,))
    x = np.array([[1, np.inf, -np.inf], [65504, 65519.996, -65520]], np.float32)
    with pytest.raises(ValueRangeError, match=r"flat index 5: -65520\.0 is out of range of F16"):
        run(x, "F16")
    assert run(x, "F16", overflow="clamp").tolist() == [[1, np.inf, -np.inf], [65504, 65504, -65504]]
    assert run(x, "F16", overflow="inf")[1].tolist() == [65504, 65504, -np.inf]
    for y in (x.astype(BF16), x.astype(np.float64)):
        with pytest.raises(ValueRangeError):
            run(y, "F16")
    top = np.array([3.4e38], np.float32)  # past the midpoint between bfloat16's largest and infinity
    with pytest.raises(ValueRangeError, match="out of range of BF16"):
        run(top, "BF16")
    assert run(top, "BF16", overflow="clamp").view(np.uint16).tolist() == [0x7F7F]
    with pytest.raises(ValueRangeError, match="out of range of F32"):
        run(np.array([1e39]), "F32")
    with pytest.raises(ValueRangeError, match="out of range of BF16"):
        run(np.array([1e300]), "BF16")


def test_overflow_far_in_names_the_first(monkeypatch):
    x = np.zeros((3, 500, 70), np.float32)
    x[2, 3, 60:] = 1e6
    assert x.T.flags.f_contiguous
    for view, at in ((x, 2 * 35000 + 3 * 70 + 60), (x[:, ::2], None), (x[2, :, ::-1], 3 * 70)):
        if at is None:
            assert np.array_equal(cast(view, "BF16"), view.astype(BF16))
        else:
            with pytest.raises(ValueRangeError, match=f"flat index {at}:"):
                cast(view, "F16")


def test_shapes_and_layouts():
    x = np.random.default_rng(2).standard_normal((5, 7, 33)).astype(np.float32)
    for view in (x, x.T, x[:, 1:, ::3], x[0, 0], x[0, 0, 0:1], np.array(x[0, 0, 0]), x[:0]):
        for backend in BACKENDS:
            got = Kernel("cast", (backend,))(view, "BF16")
            assert (got.shape, got.dtype) == (view.shape, BF16)
            assert np.array_equal(got, view.astype(BF16))


def test_same_dtype_is_the_same_array():
    x = np.zeros(3, BF16)
    assert cast(x, "BF16") is x


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_refused(backend):
    with pytest.raises(ConfigError, match="dtype 'F8_E4M3'"):
        Kernel("cast", (backend,))(np.zeros(3, np.float32), "F8_E4M3")
    with pytest.raises(ConfigError, match="dtype 'I32'"):
        Kernel("cast", (backend,))(np.zeros(3, np.int32), "BF16")
    with pytest.raises(ConfigError, match="overflow 'wrap'"):
        Kernel("cast", (backend,))(np.zeros(3, np.float32), "BF16", overflow="wrap")


def test_memory_is_bounded():
    x = np.ones((1024, 4096), np.float32)
    cast(x[:1], "BF16")
    tracemalloc.start()
    out = cast(x.T, "BF16")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - out.nbytes < 2 << 20

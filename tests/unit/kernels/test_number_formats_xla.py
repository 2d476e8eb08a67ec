"""The xla backend byte for byte as numpy, subnormal scales and values included; what it leaves to others."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from pipeline.errors import StageError, ValueRangeError
from pipeline.ops import Kernel
from pipeline.tensors.matrices import Extremes
from tests.cases.model_runs import quick_compilation
from tests.unit.kernels.test_number_formats import built, on, same, spread

BF16 = ml_dtypes.bfloat16
MX_NAMES = ("mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8")


def every_range(dtype):
    rng = np.random.default_rng(0)
    narrow = spread((64, 64), -4, 4, 1, dtype)
    patterns = rng.integers(0, 1 << 32, (256, 64), np.uint32)
    patterns[:64] &= 0x81FFFFFF  # near the bottom: subnormal values, scale byte 0
    patterns[(patterns & 0x7F800000) == 0x7F800000] = 0
    return np.concatenate([narrow, patterns.view(np.float32).astype(dtype), np.zeros((2, 64), dtype)])


@pytest.mark.parametrize("name", MX_NAMES)
@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "rceil"])
@pytest.mark.brief
def test_xla_is_numpy(name, rule, thorough):
    how = [("even", None), ("zero", None), ("away", "positive"), ("down", None)]
    both = itertools.product(how, [BF16, np.float32])
    for (ties, zero), dtype in both if thorough else zip(how, [BF16, np.float32] * 2, strict=True):
        if name == "mxint8":
            zero = None
        method = built(name, scale_rule=rule, ties=ties, zero=zero, overflow="inf")
        x = every_range(dtype)
        x = x[np.isfinite(x.astype(np.float32)).all(axis=1)]
        a, b = (on(method, k).encode(x) for k in ("numpy", "xla"))
        same(a, b)
        for to in ("F32", "BF16"):
            assert on(method, "xla").decode(b, to).tobytes() == on(method, "numpy").decode(a, to).tobytes()


REAL = {
    "int8": {}, "int4": {"ties": "away"}, "int3": {"nonfinite": "poison"}, "fp8_e4m3": {}, "fp8_e5m2": {"ties": "down"},
    "nvfp4": {}, "nvfp4, inverse": {"quotient": "reciprocal"}, "nvfp4 as torchao": {}, "nf4": {}, "nf4 twice": {},
    "q8_0": {}, "q4_0": {}, "q4_1": {"nonfinite": "poison"}, "uint4 with a zero point": {"nonfinite": "poison"},
    "uint8 a row, bf16": {}, "uint2": {}, "uint3 with a minimum": {}, "int8 a matrix": {}, "fp8 tiles": {},
    "mxfp4 as ModelOpt": {}, "int4 in powers of two": {"ties": "up"},
}  # fmt: skip


OPTIMIZED = ("fp8_e4m3", "q4_1")  # in `make test`; decoded at once, test_quantize_dequantize.py has more of them


def near_and_far(dtype, scale):
    """Matrices of 9 rows of 192: ordinary values; every exponent that the scale can follow; zeros of both signs."""
    rng = np.random.default_rng(2)
    low, high = (-22, 12) if scale in ("f16", "e4m3") else (-126, 120)
    far = rng.standard_normal((2, 9, 192)) * np.exp2(rng.integers(low, high, (2, 9, 1)).astype(float))
    far[0, :, 0::2] *= np.exp2(rng.integers(-30, 1, (9, 96)).astype(float))
    near = spread((2, 9, 192), -2, 3, 5, np.float32)
    near[1, 2], near[1, 3] = 0, -0.0
    near[1, 4, 1::2], near[1, 5] = 0, np.abs(near[1, 5])
    near[1, 5, [7, 40, 41, 150]] = [0.0, -0.0, 0.0, -0.0]
    near[0, 3] = np.round(near[0, 3] * 2) / 2
    return np.concatenate([near, far]).astype(dtype)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.brief("int4", "int8 a matrix", "nf4", "nvfp4", "q4_1", "uint4 with a zero point", "fp8 tiles", "fp8_e4m3")
def test_real_scales_are_numpys(name, thorough):
    method = built(name, **REAL[name])
    optimized = thorough or name in OPTIMIZED
    with quick_compilation(not optimized):
        _real_scales(method, name, thorough=thorough)


def _real_scales(method, name, *, thorough):
    for dtype in (BF16, np.float32) if thorough else ((BF16, np.float32)[[*REAL].index(name) % 2],):
        x = near_and_far(dtype, method.scale)
        if method.nonfinite == "poison":
            x[0, 1, 5], x[1, 2, 100], x[1, 5, 3] = np.nan, np.inf, -np.inf
        (a, sa), (b, sb) = (on(method, k).encode(x, measure=True) for k in ("numpy", "xla"))
        same(a, b)
        assert sa.to_json() == sb.to_json()
        near = type(a)(scheme=a.scheme, **{c: v if v.shape[0] != len(x) else v[:2] for c, v in a.components.items()})
        if not a.scheme.whole_only:
            for to in ("F32", "BF16"):
                y, z = (on(method, k).decode(near, to) for k in ("xla", "numpy"))
                assert np.array_equal(y.astype(np.float32), z.astype(np.float32), equal_nan=True)
                assert np.array_equal(np.signbit(y[~np.isnan(z)]), np.signbit(z[~np.isnan(z)]))


@pytest.mark.usefixtures("quick_at_first")
def test_part_of_a_matrix_is_coded_under_its_observed_extremes():
    x = spread((3, 8, 128), dtype=np.float32)
    for name in ("nvfp4", "int8 a matrix"):
        method = on(built(name), "xla")
        whole = method.encode(x)
        part = method.encode(x[:, 4:], observed=Extremes.of(x))
        assert np.array_equal(part.codes, whole.codes[:, 4:])


@pytest.mark.parametrize("name", ["int8", "int4", "fp8_e4m3", "nf4", "q4_1", "q8_0", "nvfp4"])
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
@pytest.mark.usefixtures("quick_at_first")
def test_values_below_the_normal_range_are_decoded(name, dtype):
    """XLA flushes them on CPUs; scales tell that there may be some."""
    x = spread((3, 128), dtype=np.float32) * np.array([2.0**-126, 2.0**-40, 1], np.float32)[:, None]
    q = built(name).encode(x)
    decode = [Kernel("dequantize", (backend,)) for backend in ("numpy", "xla")]
    want, got = (d(q, dtype).view(np.uint16 if dtype == "BF16" else np.uint32) for d in decode)
    assert np.array_equal(want, got)


@pytest.mark.usefixtures("quick_at_first")
def test_xla_refuses_by_name():
    x = np.ones((2, 64), BF16)
    with pytest.raises(StageError, match="neither searches nor rounds at random"):
        on(built("int8", stochastic=True), "xla").encode(x)
    q = built("int8").encode(x)
    with pytest.raises(StageError, match="not to F16"):
        on(built("int8"), "xla").decode(q, "F16")
    x[1, 3] = np.nan
    for name in ("mxfp8_e4m3", "nvfp4"):
        with pytest.raises(ValueRangeError, match="flat index 67"):
            on(built(name), "xla").encode(x)
    same(*(on(built("mxfp8_e4m3", nonfinite="poison"), k).encode(x) for k in ("xla", "numpy")))

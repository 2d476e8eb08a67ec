"""The xla backend byte for byte as numpy, subnormal scales and values included; what it leaves to others."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from pipeline.errors import StageError, ValueRangeError
from plugins.kernels.quantize import Quantize
from tests.unit.test_number_formats import built, on, same, spread

pytest.importorskip("jax")
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
def test_xla_is_numpy(name, rule):
    for (ties, zero), dtype in itertools.product(
        [("even", None), ("zero", None), ("away", "positive"), ("down", None)], [BF16, np.float32]
    ):
        if name == "mxint8":
            zero = None
        method = built(name, scale_rule=rule, ties=ties, zero=zero)
        x = every_range(dtype)
        x = x[np.isfinite(x.astype(np.float32)).all(axis=1)]
        a, b = (on(method, k).encode(x) for k in ("numpy", "xla"))
        same(a, b)
        for to in ("F32", "BF16"):
            assert on(method, "xla").decode(b, to).tobytes() == on(method, "numpy").decode(a, to).tobytes()


def test_xla_refuses_by_name():
    x = np.ones((2, 64), BF16)
    with pytest.raises(StageError, match="xla codes float and integer elements under e8m0"):
        on(built("nvfp4"), "xla").encode(x)
    q = Quantize(("xla", "numpy"))(x, built("nvfp4").scheme, scale_rule="amax")
    same(q, built("nvfp4").encode(x))
    x[1, 3] = np.nan
    with pytest.raises(ValueRangeError, match="flat index 67"):
        on(built("mxfp8_e4m3"), "xla").encode(x)
    same(*(on(built("mxfp8_e4m3", nonfinite="poison"), k).encode(x) for k in ("xla", "numpy")))

"""At the end of the range: a finite value comes back finite, or is refused with its place and the dtype that is too
narrow. Every format, rule and backend."""

import itertools
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pipeline.errors import ConfigError, StageError, ValueRangeError
from pipeline.ops import Kernel
from pipeline.tensors.scheme import MXFP4
from plugins.kernels.quantize.recipe import POWER_RULES
from tests.unit.kernels.test_number_formats import NAMES, VARIANTS, built, on

DEQUANTIZE = Kernel("dequantize", ("numpy",))

BF16 = ml_dtypes.bfloat16
LARGEST_BF16 = float(ml_dtypes.finfo(BF16).max)
TOPS = (float(np.finfo(np.float32).max), LARGEST_BF16, 2.0**127)
RULES = ("amax", "half_range", *POWER_RULES)


def methods(name: str) -> list[Any]:
    """The format as it is, and by every rule that it can be made by."""
    method = built(name)
    found = [method]
    for rule in RULES if method.like is None else ():
        try:
            found.append(replace(method, scale_rule=rule))
        except ConfigError:
            continue
    return found


def tensors(top: float, dtype: Any) -> list[Any]:
    """Both signs of `top` in blocks of zeros, of itself, of everything below it, and of values next to nothing."""
    found = []
    for fill in (0.0, top, np.linspace(-top, top, 128, dtype=np.float32), 1e-40):
        x = np.empty((4, 128), np.float32)
        x[:] = fill
        x[0, ::16], x[3, 0] = top, -top
        found.append(np.minimum(np.maximum(x, -LARGEST_BF16), LARGEST_BF16).astype(dtype) if dtype == BF16 else x)
    return found


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
@pytest.mark.brief(
    "mxfp4",
    "mxfp8_e4m3",
    "nvfp4",
    "nf4",
    "q4_1",
    "int4",
    "int8 a matrix",
    "fp8_e4m3",
    "fp8 tiles",
    "uint4 with a zero point",
)
def test_finite_values_come_back_finite_or_not_at_all(name: str) -> None:
    refused = 0
    for method, top, dtype in itertools.product(methods(name), TOPS, (np.float32, BF16)):
        for x in tensors(top, dtype):
            outcomes = []
            for backend, measure in (("reference", False), ("numpy", False), ("numpy", True), ("xla", True)):
                try:
                    q = on(method, backend).encode(x, measure=measure)
                except ValueRangeError as why:
                    outcomes.append(str(why).partition(":")[0])
                    continue
                q = q[0] if measure else q
                for to in ("F32", "BF16"):
                    assert np.isfinite(DEQUANTIZE(q, to).astype(np.float32)).all(), (method, top, backend)
                outcomes.append(b"".join(np.asarray(a).tobytes() for a in q.components.values()))
            assert len(set(outcomes)) == 1, (method, top)
            refused += isinstance(outcomes[0], str)
    # 127/64 · 2^127, the largest of MXINT8, is below BF16's largest: there nothing can go wrong.
    assert refused or built(name).element == "mxint8", "no case of this format is at the end of the range"


@pytest.mark.parametrize("backend", ["reference", "numpy", "xla"])
def test_the_refusal_says_where_and_which_dtype(backend: str) -> None:
    x = np.ones((4, 64), np.float32)
    x[2, 5] = -np.finfo(np.float32).max
    with pytest.raises(
        ValueRangeError, match=r"^flat index 133: -3\.40.*e\+38 would .*inf, out of range of F32, as INT8"
    ):
        on(built("int8"), backend).encode(x)
    x[2, 5] = 3.3999999e38
    with pytest.raises(ValueRangeError, match=r"^flat index 133: .* decode to 3\.39.*e\+38, out of range of BF16, as"):
        on(built("int8"), backend).encode(x)
    with pytest.raises(ValueRangeError, match=r"a block with amax 3\.3.*: its scale is out of range of F16$"):
        on(built("q8_0"), backend).encode(x)
    minimum = built("q4_1")
    x[2] = 1e6 + np.arange(64) / 64
    with pytest.raises(ValueRangeError, match=r"a block with amax 1000.*: its minimum is out of range of F16$"):
        on(minimum, backend).encode(x)
    wide = built("uint4 with a zero point")
    x[2, :2] = 3e38, -3e38
    with pytest.raises(ValueRangeError, match=r"a block with amax 3\.0.*e\+38: its scale is out of range of F32$"):
        on(wide, backend).encode(x)


def test_what_libraries_write_can_be_had() -> None:
    x = np.zeros(32, BF16)
    x[0] = LARGEST_BF16
    q = Kernel("quantize", ("numpy",))(x, MXFP4, scale_rule="rceil", overflow="inf")
    assert (int(q.scales[0]), int(q.codes[0])) == (253, 6)
    with pytest.raises(ValueRangeError, match="as E2M1 under a scale in E8M0"):
        Kernel("quantize", ("numpy",))(x, MXFP4, scale_rule="rceil")
    with pytest.raises((ConfigError, StageError), match="'saturate'"):
        Kernel("quantize", ("numpy",))(x, MXFP4, overflow="saturate")

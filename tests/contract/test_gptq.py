"""Every backend of gptq gives the codes and scales of its definition."""

from collections.abc import Iterable

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.ops import Kernel
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.testing.kernel import Case, KernelContract
from plugins.kernels.gptq.cases import cases


class TestGptq(KernelContract):
    def op(self) -> str:
        return "gptq"

    def cases(self) -> Iterable[Case]:
        return cases()


ROW = Scheme("int8", 0, "f32")
TWICE = Scheme("nf4", 64, "dynamic8", second="dynamic8")


@pytest.mark.parametrize("backend", ["native", "numpy", "reference"])
@pytest.mark.parametrize(
    ("shape", "scheme", "options", "said"),
    [
        ((2, 3, 64), MXFP4, {}, "one matrix"),
        ((3, 72), MXFP4, {}, "72"),
        ((4, 64), Scheme("e4m3", 32, "f32", 2), {"scale_rule": "amax"}, "blocks in one row"),
        ((3, 64), TWICE, {"scale_rule": "amax", "codes_from": "unrounded"}, "stored as they are"),
        ((3, 256), Scheme("q4_k", 256, "inside"), {}, "blocks in one row"),
        ((3, 64), MXFP4, {"stochastic": True}, "at random"),
        ((3, 64), MXFP4, {"zero": "minus"}, "to the nearest"),
        ((3, 64), ROW, {"scale_rule": "amax", "search": "mse"}, "search_grid"),
        ((3, 64), Scheme("e2m1", 16, "e4m3", second="f32"), {"scale_rule": "amax"}, "second=None"),
        ((3, 64), MXFP4, {"order": np.r_[-1, 1:64]}, "each of 64 columns once"),
    ],
)
def test_what_is_no_such_call_is_refused(backend, shape, scheme, options, said):
    with pytest.raises(ConfigError, match=said):
        Kernel("gptq", (backend,))(np.ones(shape, np.float32), np.eye(shape[-1]), scheme, **options)


def test_a_factor_is_of_the_columns():
    with pytest.raises(ConfigError, match=r"\[32, 32\] for 64 columns"):
        Kernel("gptq", ("numpy",))(np.ones((3, 64), np.float32), np.eye(32), MXFP4)


def test_no_rows_are_none():
    found = Kernel("gptq", ("native", "numpy"))(np.ones((0, 320), np.float32), np.eye(320), MXFP4)
    assert found.codes.shape == (0, 160)

"""Every backend of quantize_by_outputs gives the codes and scales of its definition."""

from collections.abc import Iterable

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.ops import Kernel
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.testing.kernel import Case, KernelContract
from plugins.kernels.quantize_by_outputs.cases import cases


class TestQuantizeByOutputs(KernelContract):
    def op(self) -> str:
        return "quantize_by_outputs"

    def cases(self) -> Iterable[Case]:
        return cases()


TWICE = Scheme("nf4", 64, "dynamic8", second="dynamic8")


@pytest.mark.parametrize("backend", ["native", "numpy", "reference"])
@pytest.mark.parametrize(
    ("shape", "scheme", "options", "said"),
    [
        ((2, 3, 64), MXFP4, {}, "one matrix"),
        ((3, 72), MXFP4, {}, "72"),
        ((4, 64), Scheme("e4m3", 32, "f32", 2), {"scale_rule": "amax"}, "blocks in one row"),
        ((3, 64), TWICE, {"scale_rule": "amax", "codes_from": "unrounded"}, "stored as they are"),
        ((3, 64), MXFP4, {"zero": "minus"}, "to the nearest"),
        ((3, 64), Scheme("int8", 0, "f32"), {"scale_rule": "amax", "search": "mse"}, "search_grid"),
        ((3, 64), Scheme("e2m1", 16, "e4m3", second="f32"), {"scale_rule": "amax"}, "second=None"),
    ],
)
def test_what_is_no_such_call_is_refused(backend, shape, scheme, options, said):
    with pytest.raises(ConfigError, match=rf"^quantize.*{said}"):
        Kernel("quantize_by_outputs", (backend,))(
            np.ones(shape, np.float32), np.eye(shape[-1], dtype=np.float32), scheme, **options
        )


def test_a_hessian_is_of_the_columns():
    with pytest.raises(ConfigError, match=r"\[32, 32\] for 64 columns"):
        Kernel("quantize_by_outputs", ("numpy",))(np.ones((3, 64), np.float32), np.eye(32, dtype=np.float32), MXFP4)


def test_no_rows_are_none():
    none = np.ones((0, 320), np.float32)
    found = Kernel("quantize_by_outputs", ("native", "numpy"))(none, np.eye(320, dtype=np.float32), MXFP4)
    assert found.codes.shape == (0, 160)

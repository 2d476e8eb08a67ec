"""Every backend of quantize_by_outputs gives the codes and scales of its definition."""

from collections.abc import Iterable

import numpy as np

from pipeline.ops import Kernel
from pipeline.tensors.scheme import MXFP4
from pipeline.testing.kernel import Case, KernelContract
from plugins.kernels.quantize_by_outputs.cases import cases

CASES = tuple(cases())  # of random matrices, multiplied once for all tests


class TestQuantizeByOutputs(KernelContract):
    def op(self) -> str:
        return "quantize_by_outputs"

    def cases(self) -> Iterable[Case]:
        return CASES


def test_no_rows_are_none():
    none = np.ones((0, 320), np.float32)
    found = Kernel("quantize_by_outputs", ("native", "numpy"))(none, np.eye(320, dtype=np.float32), MXFP4)
    assert found.codes.shape == (0, 160)

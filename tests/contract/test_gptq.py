"""Every backend of gptq gives the codes and scales of its definition."""

from collections.abc import Iterable

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.ops import Kernel
from pipeline.tensors.scheme import MXFP4
from pipeline.testing.kernel import Case, KernelContract
from plugins.kernels.gptq.cases import cases

CASES = tuple(cases())  # of random matrices, multiplied once for all tests


class TestGptq(KernelContract):
    def op(self) -> str:
        return "gptq"

    def cases(self) -> Iterable[Case]:
        return CASES


def test_an_order_has_each_column_once():
    with pytest.raises(ConfigError, match="each of 64 columns once"):
        Kernel("gptq", ("numpy",))(np.ones((3, 64), np.float32), np.eye(64), MXFP4, order=np.r_[-1, 1:64])


def test_no_rows_are_none():
    found = Kernel("gptq", ("native", "numpy"))(np.ones((0, 320), np.float32), np.eye(320), MXFP4)
    assert found.codes.shape == (0, 160)

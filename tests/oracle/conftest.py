"""torch and torchao, for tests that hold our codecs to theirs."""

import warnings

import ml_dtypes
import numpy as np
import pytest


@pytest.fixture(scope="module")
def torch():
    """On one thread, so that sums are the same every time."""
    module = pytest.importorskip("torch")
    module.set_num_threads(1)
    return module


@pytest.fixture(scope="module")
def mx_tensor(torch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")


def tensor(torch, x):
    """`x` of NumPy in torch, which knows bfloat16 by itself only."""
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)

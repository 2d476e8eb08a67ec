"""Ops that make codes of a whole matrix, in blocks of one row, refuse what is no such call."""

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.ops import Kernel
from pipeline.tensors.scheme import MXFP4, Scheme

ROW = Scheme("int8", 0, "f32")
TWICE = Scheme("nf4", 64, "dynamic8", second="dynamic8")


@pytest.mark.parametrize("backend", ["native", "numpy", "reference"])
@pytest.mark.parametrize("op", ["gptq", "quantize_by_outputs"])
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
    ],
)
def test_what_is_no_such_call_is_refused(op, backend, shape, scheme, options, said):
    with pytest.raises(ConfigError, match=rf"^(?:{op}|quantize).*{said}"):
        Kernel(op, (backend,))(np.ones(shape, np.float32), np.eye(shape[-1]), scheme, **options)


@pytest.mark.parametrize("op", ["gptq", "quantize_by_outputs"])
def test_a_square_is_of_the_columns(op):
    with pytest.raises(ConfigError, match=r"\[32, 32\] for 64 columns"):
        Kernel(op, ("numpy",))(np.ones((3, 64), np.float32), np.eye(32), MXFP4)

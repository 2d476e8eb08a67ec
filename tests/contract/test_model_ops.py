"""Every backend of the model ops keeps the contract that we ship."""

from collections.abc import Iterator

import pytest

from pipeline.testing.model_op import ModelOpContract
from tests.cases.model_runs import quick_compilation


@pytest.fixture(autouse=True)
def _quick(request: pytest.FixtureRequest) -> Iterator[None]:
    """Values of XLA's are those of optimized programs; gradients are the same without, and are most to compile."""
    call = request.node.callspec.params
    by_xla = call["backend"] == "pallas" and request.cls.op in ("matmul", "moe") and "differentiable" in call
    if by_xla and not any(some in call["differentiable"].name for some in ("mxfp4", "padding", "bias")):
        pytest.skip("its gradient is that of xla, which is held to all cases; how it comes there, to these")
    quickly = call["backend"].startswith(("native", "pallas"))
    with quick_compilation(quickly or "gradient" in request.function.__name__):
        yield


class TestMatMul(ModelOpContract):
    op = "matmul"


class TestEmbed(ModelOpContract):
    op = "embed"


class TestMoE(ModelOpContract):
    op = "moe"


class TestAttention(ModelOpContract):
    op = "attention"


class TestSoftmax(ModelOpContract):
    op = "softmax"


class TestRMSNorm(ModelOpContract):
    op = "rms_norm"


class TestRope(ModelOpContract):
    op = "rope"

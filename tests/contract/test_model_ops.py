"""Every backend of the model ops keeps the contract that we ship."""

from collections.abc import Iterator

import pytest

from pipeline.testing.model_op import ModelOpContract
from tests.cases.model_runs import quick_compilation


@pytest.fixture(autouse=True)
def _quick(request: pytest.FixtureRequest) -> Iterator[None]:
    """Values are those of optimized programs; what gradients are is the same without, and they are most to compile."""
    if "gradient" in request.function.__name__:
        with quick_compilation():
            yield
    else:
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

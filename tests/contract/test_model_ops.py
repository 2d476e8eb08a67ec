"""Every backend of the model ops keeps the contract that we ship."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from pipeline.testing.model_op import ModelOpContract
from tests.cases.model_runs import quick_compilation
from tests.cases.mosaic_interpreted import compiled_once


@pytest.fixture(autouse=True)
def _quick(request: pytest.FixtureRequest) -> Iterator[None]:
    """Values of XLA's are those of optimized programs; gradients are the same without, and are most to compile."""
    call = request.node.callspec.params
    by_xla = call["backend"] == "pallas" and request.cls.op in ("matmul", "moe") and "differentiable" in call
    if by_xla and not any(some in call["differentiable"].name for some in ("mxfp4", "padding", "bias")):
        pytest.skip("its gradient is that of xla, which is held to all cases; how it comes there, to these")
    quickly = call["backend"].startswith(("native", "pallas", "mosaic_gpu"))
    with quick_compilation(quickly or "gradient" in request.function.__name__), compiled_once():
        yield


# Schemes whose gradients go through experts in ways of their own: powers of two, a scale over scales, a code book whose
# scales are coded, a minimum, tiles. The product with what is decoded is that of `matmul`, which has them all.
EXPERTS_PULLED = ("mxfp4", "nvfp4", "nf4 twice", "q4_1", "fp8 in tiles")
# Of attention, what has everything that the others have one by one.
ATTENTION_PULLED = (
    "segments, sinks and window", "softcap and sinks", "window, not causal", "decode, bf16", "packed, e4m3", "padding",
)  # fmt: skip


def case_of(call: Mapping[str, Any]) -> str:
    """Its name; the scheme alone, where it differs from others in dtypes and rows only."""
    name = next(call[kind].name for kind in ("case", "differentiable", "packed") if kind in call)
    return re.sub(r" (float32|bfloat16)( \d)?", "", name)


def once(call: Mapping[str, Any]) -> tuple[str, str]:
    """Every scheme by every backend."""
    return call["backend"], case_of(call) if len(call) > 1 else ""


def of_experts(call: Mapping[str, Any]) -> tuple[Any, ...]:
    """The same, but of gradients those of some schemes; and of each number of tokens one of both activations in turn,
    which are the caller's, except where C++ has them."""
    if "case" in call and call["backend"] in ("xla", "pallas"):
        return call["backend"], re.sub(r", (gate and up|interleaved)$", "", case_of(call))
    some = "differentiable" not in call or case_of(call) in EXPERTS_PULLED or call["backend"] == "native"
    return once(call) if some else (call["backend"], "tokens" in case_of(call))


def of_attention(call: Mapping[str, Any]) -> tuple[Any, ...]:
    some = call["backend"] != "pallas" or "differentiable" not in call or case_of(call) in ATTENTION_PULLED
    return once(call) if some else (call["backend"],)


@pytest.mark.brief(each=once)
class TestMatMul(ModelOpContract):
    op = "matmul"


@pytest.mark.brief(each=once)
class TestEmbed(ModelOpContract):
    op = "embed"


@pytest.mark.brief(each=of_experts)
class TestMoE(ModelOpContract):
    op = "moe"


@pytest.mark.brief(each=of_attention)
class TestAttention(ModelOpContract):
    op = "attention"


class TestSoftmax(ModelOpContract):
    op = "softmax"


class TestRMSNorm(ModelOpContract):
    op = "rms_norm"


class TestRope(ModelOpContract):
    op = "rope"

"""Every backend of the model ops keeps the contract that we ship."""

from pipeline.testing.model_op import ModelOpContract
from plugins.kernels import attention, embed, matmul, moe, rms_norm, rope, softmax


def others(op: object) -> tuple[str, ...]:
    """All backends but the definition, which the others are held to."""
    return tuple(name for name in op.OP.backends if name != "reference")  # type: ignore[attr-defined]


class TestMatMul(ModelOpContract):
    op, backends = "matmul", others(matmul)


class TestEmbed(ModelOpContract):
    op, backends = "embed", others(embed)


class TestMoE(ModelOpContract):
    op, backends = "moe", others(moe)


class TestAttention(ModelOpContract):
    op, backends = "attention", others(attention)


class TestSoftmax(ModelOpContract):
    op, backends = "softmax", others(softmax)


class TestRMSNorm(ModelOpContract):
    op, backends = "rms_norm", others(rms_norm)


class TestRope(ModelOpContract):
    op, backends = "rope", others(rope)

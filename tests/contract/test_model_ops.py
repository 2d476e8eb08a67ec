"""Every backend of the model ops keeps the contract that we ship."""

from pipeline.testing.model_op import ModelOpContract


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

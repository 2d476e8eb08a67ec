"""What a plan says of a model's kernels is what the model does: the same ops on the same weights."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from pipeline.ops import Call, Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4
from pipeline.tensors.spec import TensorSpec, dtype_name
from plugins.engine.load import parameters
from plugins.models.calls import calls
from plugins.models.common.ops import Ops
from plugins.models.common.weights import Weights
from plugins.models.family import family_of
from tests.cases import model_runs

SHAPE = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "num_hidden_layers": 2, "vocab_size": 40, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
    "hidden_act": "silu",
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"tie_word_embeddings": False},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {},
    "qwen3_moe": {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True},
    "gemma3_text": {
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 8, "sliding_window": 7,
        "sliding_window_pattern": 2, "rope_local_base_freq": 1e4,
    },
    "gpt_oss": {
        "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 7, "swiglu_limit": 7.0,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 2.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 32,
        },
    },
}  # fmt: skip


class Noted:
    """A kernel that notes what it is called with."""

    def __init__(self, kernel: Kernel, seen: Counter[Any]):
        self.kernel, self.seen = kernel, seen

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.seen[_weights(self.kernel.op, args, options)] += 1
        return self.kernel(*args, **options)

    def together(self, *calls: tuple[Any, ...]) -> list[Any]:
        return [self(*args) for args in calls]


def _weights(op: str, args: Any, options: Mapping[str, Any]) -> Any:
    spec = _spec
    if op in ("matmul", "embed", "rms_norm"):
        return op, spec(args[1])
    if op == "moe":
        return op, (tuple(map(spec, args[3])), spec(args[5]))
    if op == "attention":
        return op, (args[0].shape, options.get("sinks") is not None)
    return op, args[0].shape if op == "rope" else None


def _spec(value: Any) -> TensorSpec:
    if isinstance(value, QTensor):
        return TensorSpec(tuple(value.shape), "BF16", value.scheme)
    return TensorSpec(tuple(value.shape), dtype_name(value.dtype))


def _promised(call: Call) -> Any:
    op, given = call.kernel.op, call.given
    if op == "rms_norm":
        return op, given["weight"]
    if op in ("matmul", "embed"):
        return op, given["w"]
    if op == "moe":
        return op, (given["w_in"], given["w_out"])
    if op == "attention":
        return op, (given["q"].shape, given["sinks"] is not None)
    return op, given["x"].shape if op == "rope" else None


@pytest.mark.parametrize("model_type", CONFIGS)
def test_a_model_calls_what_its_plan_says(model_type: str) -> None:
    engine, config = model_runs.engine(), {"model_type": model_type, **SHAPE, **CONFIGS[model_type]}
    family = family_of(config, engine.families)
    unnamed = {f"x{i}": TensorSpec((1,), "BF16") for i in range(999)}  # models may not have more layers than tensors
    named = family.build(config, Weights(unnamed), engine.ops, "float32")
    specs = {}
    for param in parameters(named):
        one = replace(param.spec, shape=param.spec.shape[1:]) if param.stack else param.spec
        packed = re.search(r"proj(.weight)?$", param.names[0]) and one.shape[-1] % 32 == 0
        specs |= {name: replace(one, scheme=MXFP4) if packed else one for name in param.names}
    seen: Counter[Any] = Counter()
    ops = Ops(*(Noted(getattr(engine.ops, f.name), seen) for f in fields(Ops)))  # type: ignore[arg-type]
    graph, weights = nnx.split(family.build(config, Weights(specs), ops, "float32"))

    def one_pass(weights: Any, tokens: Any, positions: Any) -> Any:
        model = nnx.merge(graph, weights)
        return model.logits(model(tokens, positions)[0][:, -1])

    jax.eval_shape(one_pass, weights, *(jax.ShapeDtypeStruct((1, 5), jnp.int32),) * 2)
    promised = Counter(_promised(call) for call in calls(specs, config, engine.ops, "F32", rows=5))
    for key in [k for k in seen if k[0] == "rope" and k[1][2] == SHAPE["num_key_value_heads"]]:
        assert seen.pop(key) == SHAPE["num_hidden_layers"]  # of keys, beside those of queries
    assert promised == seen

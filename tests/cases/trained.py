"""Toy models of every family to be trained, and batches for them: small, so that a step compiles in a second or two."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np

from pipeline.mesh import Mesh
from pipeline.planning.layout import lay_out
from pipeline.tensors.spec import TensorSpec
from plugins.models.common.decoder import Decoder
from plugins.models.common.weights import Weights
from plugins.models.family import family_of
from tests.cases import model_runs

WINDOW, VOCAB = 5, 96
_ROPE = {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}
_SHAPE: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "num_hidden_layers": 2, "vocab_size": VOCAB, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, **_ROPE,
}  # fmt: skip
_LAYERS = ["sliding_attention", "full_attention"]
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt_oss": {**_SHAPE, "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
                "sliding_window": WINDOW, "layer_types": _LAYERS},
    "llama": {**_SHAPE, "model_type": "llama", "hidden_act": "silu", "tie_word_embeddings": True},
    "mistral": {**_SHAPE, "model_type": "mistral", "hidden_act": "silu", "sliding_window": WINDOW},
    "qwen2": {**_SHAPE, "model_type": "qwen2", "hidden_act": "silu"},
    "qwen3_moe": {**_SHAPE, "model_type": "qwen3_moe", "num_experts": 4, "moe_intermediate_size": 24,
                  "num_experts_per_tok": 2, "norm_topk_prob": True, "hidden_act": "silu"},
    "gemma": {**_SHAPE, "model_type": "gemma3_text", "sliding_window": WINDOW, "layer_types": _LAYERS,
              "query_pre_attn_scalar": 8, "final_logit_softcapping": 9.0, "hidden_activation": "gelu_pytorch_tanh",
              "rope_parameters": dict.fromkeys(_LAYERS, _ROPE["rope_parameters"])},
}  # fmt: skip
FAMILIES = ("gpt_oss", "llama", "qwen2", "qwen3_moe", "gemma")


def model(kind: str, dtype: str = "float32", mesh: Mesh | None = None, **options: Any) -> Decoder:
    """Of shapes; `options` are config.json's."""
    config = {**CONFIGS[kind], **options}
    engine = model_runs.engine()
    family = family_of(config, engine.families)
    table = family.parameters(config)
    specs = {n: TensorSpec(p.shape[1:] if p.stack else p.shape, "F32") for p in table for n in p.names}
    layouts = {}
    if mesh is not None:
        used = {"batch", *(axis for p in table for axis in p.axes)}
        layouts = lay_out(replace(mesh, rules={k: v for k, v in mesh.rules.items() if k in used}), table, specs)
    weights = Weights(specs, layouts=layouts)
    found: Decoder = family.build(config, weights, engine.ops.on("cpu"), dtype)
    weights.check(config)
    return found


def parameters(kind: str, seed: int = 0, **options: Any) -> dict[str, Any]:
    """Random ones, large enough that every part of the model shows in its loss."""
    config = {**CONFIGS[kind], **options}
    rng = np.random.default_rng(seed)
    found = {}
    for p in family_of(config, model_runs.engine().families).parameters(config):
        noise = rng.standard_normal(p.shape).astype(np.float32)
        if len(p.shape) == 1 or p.name.endswith("_bias"):
            found[p.name] = 0.3 * noise + float(p.name.endswith("norm.weight") and kind != "gemma")
        else:
            found[p.name] = noise * p.shape[-1] ** -0.5
    return found


def batches(accumulate: int, rows: int, length: int, seed: int = 0) -> dict[str, Any]:
    """`[accumulate, rows, length]`: rows of several documents each, some tokens without loss, padding at the end."""
    rng = np.random.default_rng(seed)
    shape = (accumulate, rows, length)
    tokens = rng.integers(0, VOCAB, shape).astype(np.int32)
    positions, segments = np.full(shape, -1, np.int32), np.zeros(shape, np.int32)
    for at in np.ndindex(accumulate, rows):
        begin, document = 0, 1
        while begin < length - 2:
            n = int(min(rng.integers(3, length), length - 1 - begin))
            positions[at][begin : begin + n], segments[at][begin : begin + n] = np.arange(n), document
            begin, document = begin + n, document + 1
    last = np.diff(segments, axis=-1, append=0) != 0
    weights = (rng.random(shape) < 0.8) & (segments > 0) & ~last
    return {
        "tokens": tokens, "targets": np.roll(tokens, -1, axis=-1), "weights": weights.astype(np.float32),
        "positions": positions, "segments": segments,
    }  # fmt: skip


def spread(mesh: Mesh) -> Any:
    """Over the first devices that there are."""
    from plugins.engine.spread import Spread
    from plugins.mesh.devices import arrange

    return Spread(mesh, arrange(mesh, jax.devices()[: mesh.size]))


@cache
def step_of(kind: str, **options: Any) -> Any:
    """A `plugins.train.step.Step` of AdamW; the same one for all who ask, so that it compiles once."""
    from plugins.train.objectives import CausalLM
    from plugins.train.optimizers import AdamW
    from plugins.train.step import make_step

    return make_step(model(kind), CausalLM(**options), AdamW(), steps=100)


def key() -> Any:
    return jax.random.key(0)


def perceptron(wide: int = 8) -> Any:
    """Of shapes: `[B, 3]` → `[B, 2]`, with names by path."""
    from flax import nnx

    class Perceptron(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.into, self.out = nnx.Linear(3, wide, rngs=rngs), nnx.Linear(wide, 2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.out(jax.nn.tanh(self.into(x)))

    return nnx.eval_shape(lambda: Perceptron(nnx.Rngs(0)))

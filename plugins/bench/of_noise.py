"""gpt-oss-20b's shapes with weights of noise, made on the device, and programs that say which experts were chosen."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.errors import ConfigError, did_you_mean
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4
from pipeline.tensors.spec import TensorSpec
from plugins.engine.load import parameters
from plugins.engine.runtime import Runtime
from plugins.engine.sampling import likeliest
from plugins.models.common.cache import KV, Cache
from plugins.models.common.ops import Ops
from plugins.models.common.weights import Weights
from plugins.models.gpt_oss.family import GptOss

CONFIG: Final = GptOss.published / "openai" / "gpt-oss-20b.json"
SCALES: Final = (118, 125)  # E8M0 codes of 2^-9 to 2^-3
PACKED: Final = ("gate_up_proj", "down_proj")
PLAIN: Final = "xla"


@dataclass(eq=False)
class Experts:
    """The op `moe`, and what the router chose in each layer of the trace that is going on."""

    kernel: Kernel
    chosen: list[Any] = field(default_factory=list)

    def __call__(self, x: Any, chosen: Any, *args: Any, **options: Any) -> Any:
        self.chosen.append(chosen)
        return self.kernel(x, chosen, *args, **options)

    def taken(self, layers: int) -> Any:
        """Those of the last pass, [layers, N, k]."""
        found, self.chosen = self.chosen[-layers:], []
        return jnp.stack(found)


def backends(given: Sequence[str]) -> dict[str, str]:
    """By op. A name alone is that of the kernels of moe and attention; the rest is XLA's.

    Raises:
        ConfigError: there is no such op.
    """
    known = [f.name for f in fields(Ops)]
    found = dict.fromkeys(known, PLAIN)
    for word in given:
        op, _, name = word.rpartition("=")
        if op and op not in known:
            raise ConfigError(f"--kernels: there is no op {op!r}{did_you_mean(op, known)}")
        found |= {op: name} if op else dict.fromkeys(("moe", "attention"), name)
    return found


def ops(named: Mapping[str, str], device: Any) -> Ops:
    """Each op with its backend on a JAX device, or XLA's where that one declines; what ran is counted."""
    on = device.platform, device.device_kind
    kernels = {op: Kernel(op, tuple(dict.fromkeys((name, PLAIN))), *on) for op, name in named.items()}
    return Ops(**{**kernels, "moe": Experts(kernels["moe"])})  # type: ignore[arg-type]


def config(layers: int | None, **changed: int) -> dict[str, Any]:
    """That of gpt-oss-20b.

    Args:
        layers: the first ones only.
        changed: other sizes, for tests.
    """
    found: dict[str, Any] = {**json.loads(CONFIG.read_text()), **changed}
    layers = layers or found["num_hidden_layers"]
    return {**found, "num_hidden_layers": layers, "layer_types": found["layer_types"][:layers]}


def specs(config: Mapping[str, Any]) -> dict[str, TensorSpec]:
    """Tensors as the published checkpoint stores them: experts in MXFP4, everything else in bfloat16."""
    return {
        name: TensorSpec(p.shape, "BF16", MXFP4 if name.endswith(PACKED) else None)
        for p in GptOss().parameters(config) for name in p.names
    }  # fmt: skip


def model(config: Mapping[str, Any], of: Ops, dtype: str = "bfloat16") -> Any:
    """Its shapes, without weights."""
    weights = Weights(specs(config))
    built = GptOss().build(config, weights, of, dtype)
    weights.check(config)
    return built


@partial(jax.jit, static_argnums=(1, 2, 3))
def _normal(key: Any, shape: tuple[int, ...], scale: float, mean: float) -> Any:
    return (mean + scale * jax.random.normal(key, shape, jnp.bfloat16)).astype(jnp.bfloat16)


@partial(jax.jit, static_argnums=1)
def _bytes(key: Any, shape: tuple[int, ...]) -> Any:
    return jax.random.bits(key, shape, jnp.uint8)


@partial(jax.jit, static_argnums=1)
def _scales(key: Any, shape: tuple[int, ...]) -> Any:
    return jax.random.randint(key, shape, *SCALES).astype(jnp.uint8)


def noise(built: Any, seed: int = 0) -> None:
    """Weights of a model, of sizes that keep activations about 1, on the default device."""
    for i, param in enumerate(parameters(built)):
        key = jax.random.fold_in(jax.random.key(seed, impl="rbg"), i)  # not threefry: 13 GB of it take long
        spec, [name, *_] = param.spec, param.names
        if spec.scheme is not None:
            shapes = spec.scheme.components(spec.shape)
            first, second = jax.random.split(key)
            param.set_value(QTensor(_bytes(first, shapes["codes"]), _scales(second, shapes["scales"]), spec.scheme))
        elif name.endswith("norm.weight"):
            param.set_value(jnp.ones(spec.shape, jnp.bfloat16))
        elif len(spec.shape) == 1 or name.endswith("bias"):  # biases and sinks
            param.set_value(_normal(key, spec.shape, 0.1, 0.0))
        else:
            wide = 1.0 if "embed_tokens" in name else spec.shape[-1] ** -0.5
            param.set_value(_normal(key, spec.shape, wide, 0.0))


def filled(runtime: Runtime, batch: int, held: int, capacity: int, seed: int = 1) -> Cache:
    """A cache of noise in which every sequence has `held` tokens."""
    cache = runtime.new_cache(batch, capacity)
    key = jax.random.key(seed, impl="rbg")
    layers = []
    for i, layer in enumerate(cache.layers):
        k, v = (
            jax.lax.bitcast_convert_type(_normal(jax.random.fold_in(key, 2 * i + j), layer.k.shape, 1.0, 0.0), a.dtype)
            for j, a in enumerate((layer.k, layer.v))
        )
        layers.append(KV(k, v))
    at = {}
    for slots in cache.positions:
        held_by = np.arange(max(0, held - slots), held, dtype=np.int32)
        row = np.full(slots, -1, np.int32)
        row[held_by % slots] = held_by
        at[slots] = jnp.broadcast_to(jnp.asarray(row), (batch, slots))
    return replace(cache, layers=tuple(layers), positions=at)


def step(built: Any, cache: Any, token: Any, position: Any, *, layers: int) -> Any:
    """One token of every sequence: the cache with it, the next ones, their positions, and the experts of each layer."""
    hidden, cache = built(token[:, None], position[:, None], cache, fresh=False)
    token = likeliest(built.logits(hidden[:, 0]))
    return cache, (token, position + 1, built.ops.moe.taken(layers))


def with_logits(built: Any, cache: Any, token: Any, position: Any, *, layers: int) -> Any:
    """Logits of one more token of every sequence, and the experts of each layer."""
    hidden, _ = built(token[:, None], position[:, None], cache, fresh=False)
    return built.logits(hidden[:, 0]), built.ops.moe.taken(layers)


def of_prompt(built: Any, tokens: Any, positions: Any, *, layers: int) -> Any:
    """Logits of every token of prompts, [B T, V], and the experts of each layer."""
    hidden, _ = built(tokens, positions)
    logits = built.logits(hidden)
    return logits.reshape(-1, logits.shape[-1]), built.ops.moe.taken(layers)


def begin(runtime: Runtime, batch: int, held: int) -> tuple[Any, Any]:
    """The token that each sequence goes on with, and its position."""
    token = jnp.asarray(np.random.default_rng(2).integers(runtime.vocab, size=batch), jnp.int32)
    return token, jnp.full(batch, held, jnp.int32)

"""How far logits by some kernels lie from those by XLA's, and both from float32's, of the same weights of noise."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from plugins.bench import of_noise
from plugins.engine.runtime import Runtime

BF16_ROUNDING: Final = 2.0**-9  # at most, of a value; half of the distance between two of them


@dataclass(frozen=True)
class Apart:
    """How far logits are from others, over the tokens of one call.

    Attributes:
        largest: difference.
        rms: of differences.
        spread: standard deviation of the others.
        same: share of tokens whose likeliest next one is the same.
        other_experts: tokens that another expert was chosen for in some layer: a rounding turned the router's choice.
        largest_else, rms_else: of the tokens of which that is not so.
    """

    largest: float
    rms: float
    spread: float
    same: float
    other_experts: int
    tokens: int
    largest_else: float
    rms_else: float


@jax.jit
def _differences(a: Any, b: Any) -> Any:
    off = jnp.abs(a - b)
    same = jnp.argmax(a, -1) == jnp.argmax(b, -1)
    return jnp.max(off, -1), jnp.mean(jnp.square(off), -1), same, jnp.std(b)


def apart(found: tuple[Any, Any], other: tuple[Any, Any]) -> Apart:
    """
    Args:
        found, other: logits [N, V] and experts [layers, N, k].
    """
    most, squares, same, spread = map(np.asarray, _differences(found[0], other[0]))
    ours, theirs = (np.sort(np.asarray(experts), axis=-1) for experts in (found[1], other[1]))
    turned = (ours != theirs).any(axis=(0, 2))
    rest = ~turned
    return Apart(
        float(most.max()), math.sqrt(float(squares.mean())), float(spread), float(same.mean()), int(turned.sum()),
        len(turned), float(most[rest].max(initial=0.0)), math.sqrt(float(squares[rest].mean())) if rest.any() else 0.0,
    )  # fmt: skip


def compared(
    config: Mapping[str, Any], named: Mapping[str, str], device: Any, batch: int, held: int, capacity: int, tokens: int
) -> Iterator[tuple[str, Apart, Apart, Apart]]:
    """Of a step and of a prompt: the kernels and XLA's, and each and float32, from the same weights and cache."""
    layers = config["num_hidden_layers"]
    plain = dict.fromkeys(named, of_noise.PLAIN)
    of = {
        "kernels": (named, "bfloat16"), "xla": (plain, "bfloat16"), "float32": (plain, "float32")
    }  # fmt: skip
    weights: Any = None
    found: dict[str, dict[str, tuple[Any, Any]]] = {"step": {}, "prompt": {}}
    for name, (kernels, dtype) in of.items():
        built = of_noise.model(config, of_noise.ops(kernels, device), dtype)
        if weights is None:
            of_noise.noise(built)
            weights = jax.tree.leaves(nnx.split(built)[1])
        else:
            graph, state = nnx.split(built)
            built = nnx.merge(graph, jax.tree.unflatten(jax.tree.structure(state), weights))
        runtime = Runtime(built, config, "bf16", device, 0.0)
        cache = of_noise.filled(runtime, batch, held, capacity)
        ids = jnp.asarray(np.random.default_rng(3).integers(runtime.vocab, size=(1, tokens)), jnp.int32)
        positions = jnp.arange(tokens, dtype=jnp.int32)[None]
        with jax.default_matmul_precision("highest" if dtype == "float32" else "default"):
            first = of_noise.begin(runtime, batch, held)
            found["step"][name] = runtime.call("logits", partial(of_noise.with_logits, layers=layers), cache, *first)
            found["prompt"][name] = runtime.call("prompt", partial(of_noise.of_prompt, layers=layers), ids, positions)
    for what, these in found.items():
        pairs = (("kernels", "xla"), ("kernels", "float32"), ("xla", "float32"))
        ours, known, theirs = (apart(these[a], these[b]) for a, b in pairs)
        yield f"{what}, {batch if what == 'step' else tokens} tokens", ours, known, theirs


def said(what: str, ours: Apart, known: Apart, theirs: Apart) -> str:
    def one(a: Apart) -> str:
        return f"{a.largest:.4f} at most, {a.rms:.2e} rms"

    return (
        f"logits of a {what}: spread {ours.spread:.3f}; kernels and xla {one(ours)} ({ours.largest_else:.4f}, "
        f"{ours.rms_else:.2e} without {ours.other_experts} of {ours.tokens} tokens that had other experts), the same "
        f"next token after {ours.same:.1%}; from float32: kernels {one(known)} (other experts {known.other_experts}), "
        f"xla {one(theirs)} (other experts {theirs.other_experts}); a bf16 value is rounded by {BF16_ROUNDING:.1e} of "
        f"itself, the largest logit by {BF16_ROUNDING * 5 * ours.spread:.4f}"
    )

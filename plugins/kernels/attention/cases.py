"""Named calls of attention, and its formula as JAX differentiates it in float64: what backends are held to."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from pipeline.tensors.scheme import Scheme
from pipeline.testing.kernel import Case
from pipeline.testing.memory import quantized
from plugins.kernels.cases import BF16, normal, rng_of
from plugins.kernels.softmax.cases import in_float64 as softmax


def cases() -> Iterator[Case]:
    """B 2, T 5, S 11, H 6, K 3, D 8, Dv 4."""
    batch, queries, slots, heads, key_heads, d, dv = 2, 5, 11, 6, 3, 8, 4
    rng = rng_of("attention")
    q, k, v = (
        normal(rng, *s)
        for s in ((batch, queries, heads, d), (batch, slots, key_heads, d), (batch, slots, key_heads, dv))
    )
    at = np.array([[6, 7, 8, 9, 10], [-1, -1, 2, 3, 4]], np.int32)
    slot = np.array([[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [2, 3, 4, -1, -1, -1, -1, -1, -1, 0, 1]], np.int32)
    sinks = normal(rng, heads)
    base = (q, k, v, at, slot)
    kinds: dict[str, dict[str, Any]] = {
        "causal": {},
        "not causal": {"causal": False},
        "window": {"window": 3},
        "window of one": {"window": 1},
        "window, not causal": {"window": 2, "causal": False},
        "sinks": {"sinks": sinks},
        "large sinks": {"sinks": sinks + 40},
        "sinks and window": {"sinks": sinks, "window": 4},
        "softcap": {"softcap": 0.7},
        "softcap and sinks": {"softcap": 1.5, "sinks": sinks},
    }
    for name, options in kinds.items():
        yield Case(name, base, {"scale": 0.4} | options)
    yield Case("large logits", (q * 40, k * 40, v, at, slot), {"scale": 0.4, "sinks": sinks})
    yield Case("bf16", (*(a.astype(BF16) for a in (q, k, v)), at, slot), {"scale": 0.4, "sinks": sinks})
    empty = np.full_like(slot, -1)
    yield Case("nothing to see", (q, k, v, at, empty), {"scale": 0.4})
    yield Case("nothing but sinks", (q, k, v, at, empty), {"scale": 0.4, "sinks": sinks})
    one = (q[:, :1], k, v, np.array([[10], [4]], np.int32), slot)
    yield Case("decode", one, {"scale": 0.4, "sinks": sinks, "window": 4})
    yield Case("decode, bf16", (*(a.astype(BF16) for a in one[:3]), *one[3:]), {"scale": 0.4})
    yield Case("keys of bf16", (q, *(a.astype(BF16) for a in (k, v)), at, slot), {"scale": 0.4, "sinks": sinks})
    for name, dims, options in (
        ("64 dims, bf16", (64, 64), {"sinks": sinks, "window": 4}),
        ("64 and 128 dims, bf16", (64, 128), {"softcap": 1.5, "causal": False}),
    ):  # fmt: skip
        wide = (normal(rng, *a.shape[:-1], n).astype(BF16) for a, n in zip((q, k, v), (dims[0], *dims), strict=True))
        yield Case(name, (*wide, at, slot), {"scale": 0.1, **options})
    packed_rows = (q, k[:, :queries], v[:, :queries])
    inside = np.array([[0, 1, 2, 0, 1], [0, 0, 1, 2, -1]], np.int32)
    segments = np.array([[1, 1, 1, 2, 2], [1, 2, 2, 2, 0]], np.int32)
    for name, options in {"": {}, ", sinks and window": {"sinks": sinks, "window": 2}}.items():
        yield Case(f"segments{name}", (*packed_rows, inside, inside), {"scale": 0.4, "segments": segments, **options})
    for element in ("int8", "e4m3"):
        packed = [quantized(Scheme(element, 0, "f32"), a.shape) for a in (k, v)]
        yield Case(f"packed, {element}", (q, *packed, at, slot), {"scale": 0.003, "sinks": sinks, "window": 4})


def in_float64(
    q: Any, k: Any, v: Any, q_positions: Any, k_positions: Any, *, scale: float, window: int | None = None,
    sinks: Any = None, softcap: float | None = None, causal: bool = True, segments: Any = None,
) -> Any:  # fmt: skip
    group = q.shape[2] // k.shape[2]
    logits = jnp.einsum("bthd,bshd->bhts", q, jnp.repeat(k, group, axis=2)) * scale
    if softcap is not None:
        logits = softcap * jnp.tanh(logits / softcap)
    at, slot = q_positions[:, None, :, None], k_positions[:, None, None, :]
    seen = jnp.broadcast_to(slot >= 0, (*logits.shape[:1], 1, *logits.shape[2:]))
    seen = seen & (slot <= at) if causal else seen
    seen = seen & (slot > at - window) if window is not None else seen
    if segments is not None:
        seen = seen & (segments[:, None, :, None] == segments[:, None, None, :])
    p = softmax(
        logits, sinks=None if sinks is None else sinks[None, :, None, None], where=jnp.broadcast_to(seen, logits.shape)
    )
    return jnp.einsum("bhts,bshd->bthd", p, jnp.repeat(v, group, axis=2))

"""attention, the definition: one query of one head at a time, in float64."""

from typing import Any

import numpy as np

from plugins.kernels.matmul.reference import values
from plugins.kernels.softmax.reference import one_row


def attention(
    q: Any,
    k: Any,
    v: Any,
    q_positions: Any,
    k_positions: Any,
    *,
    scale: float,
    window: int | None = None,
    sinks: Any = None,
    softcap: float | None = None,
    causal: bool = True,
    segments: Any = None,
) -> Any:
    """See the op's docstring."""
    q = np.asarray(q)
    k, v = (values(a, q.dtype) for a in (k, v))
    (batch, queries, heads, _), slots, key_heads = q.shape, k.shape[1], k.shape[2]
    out = np.zeros((batch, queries, heads, v.shape[-1]))
    for b, t, h in np.ndindex(batch, queries, heads):
        at = int(q_positions[b][t])
        seen = [
            s
            for s in range(slots)
            if sees(at, int(k_positions[b][s]), window, causal)
            and (segments is None or segments[b][s] == segments[b][t])
        ]
        keys, seen_values = (a[b, seen, h // (heads // key_heads)].astype(np.float64) for a in (k, v))
        logits = keys @ q[b, t, h].astype(np.float64) * scale
        if softcap is not None:
            logits = softcap * np.tanh(logits / softcap)
        out[b, t, h] = one_row(logits, None if sinks is None else float(sinks[h])) @ seen_values
    return out.astype(np.float32).astype(q.dtype)


def sees(query: int, key: int, window: int | None, causal: bool) -> bool:
    """Whether a query at one position sees a key at another."""
    return key >= 0 and (not causal or key <= query) and (window is None or key > query - window)

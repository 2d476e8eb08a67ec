"""rope, the definition: one pair of dims at a time. Angles are float32 products, as every program computes them."""

from typing import Any

import numpy as np


def rope(x: Any, positions: Any, inv_freq: Any, *, concentration: float = 1.0, interleaved: bool = False) -> Any:
    """See the op's docstring."""
    x, half = np.asarray(x), len(inv_freq)
    out = x.astype(np.float64)
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        angle = np.asarray(positions).astype(np.float32) * np.float32(inv_freq[i])  # [B, T]
        cos, sin = (f(angle.astype(np.float64))[:, :, None] * concentration for f in (np.cos, np.sin))
        first, second = x[..., a].astype(np.float64), x[..., b].astype(np.float64)
        out[..., a] = first * cos - second * sin
        out[..., b] = second * cos + first * sin
    return out.astype(np.float32).astype(x.dtype)

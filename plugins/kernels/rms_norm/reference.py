"""rms_norm, the definition, in float64."""

from typing import Any

import numpy as np


def rms_norm(x: Any, weight: Any, *, eps: float, plus_one: bool = False) -> Any:
    """See the op's docstring."""
    x = np.asarray(x)
    wide, gain = x.astype(np.float64), np.asarray(weight).astype(np.float64)
    mean_square = (wide * wide).sum(axis=-1, keepdims=True) / x.shape[-1]
    y = wide / np.sqrt(mean_square + eps) * (1 + gain if plus_one else gain)
    return y.astype(np.float32).astype(x.dtype)

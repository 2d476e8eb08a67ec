"""softmax, the definition: one vector at a time, in float64."""

from typing import Any

import numpy as np


def softmax(x: Any, *, axis: int = -1, sinks: Any = None, where: Any = None) -> Any:
    """See the op's docstring."""
    x = np.asarray(x)
    logits = np.moveaxis(x.astype(np.float64), axis, -1)
    seen = np.moveaxis(np.broadcast_to(True if where is None else np.asarray(where), x.shape), axis, -1)
    extra = None
    if sinks is not None:
        one = np.moveaxis(np.asarray(sinks).astype(np.float64), axis, -1)
        extra = np.broadcast_to(one, (*logits.shape[:-1], 1))
    out = np.zeros(logits.shape)
    for row in np.ndindex(*logits.shape[:-1]):
        out[row][seen[row]] = one_row(logits[row][seen[row]], None if extra is None else extra[row][0])
    return np.moveaxis(out, -1, axis).astype(np.float32).astype(x.dtype)


def one_row(logits: Any, sink: Any = None) -> Any:
    """Probabilities of a float64 vector, beside a sink that is dropped."""
    everything = [*logits, *([] if sink is None else [sink])]
    if not len(logits):
        return logits
    top = max(everything)
    weights = np.exp(np.array(everything) - top)
    return (weights / weights.sum())[: len(logits)]

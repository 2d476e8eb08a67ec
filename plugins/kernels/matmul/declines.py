"""What backends of matmul leave to others, and why: a function each. No framework here: plans ask."""

import math
from typing import Any

from pipeline.ops import Request

MOST_ROWS = 8  # of activations: more are a matter of arithmetic, and fewer one of reading weights


def native(request: Request) -> str | None:
    x, w = request.get("x"), request.get("w")
    if w is not None and (why := not_mxfp4(w)):
        return why
    if x is not None and (rows := math.prod(x.shape[:-1])) > MOST_ROWS:
        return f"{rows} rows; the native kernel is for {MOST_ROWS} at most"
    return None


def not_mxfp4(w: Any) -> str | None:
    """Why weights, a TensorSpec, are not what the native kernels read; None when they are."""
    s = w.scheme
    if s is None or (s.element, s.scale, s.block_elems, s.block_rows) != ("e2m1", "e8m0", 32, 1):
        return f"{'plain' if s is None else s.element} weights; the native kernel is for MXFP4 in blocks of 32"
    return None

"""What backends of moe leave to others, and why: a function each. No framework here: plans ask."""

import math

from pipeline.ops import Request
from plugins.kernels.matmul.declines import not_mxfp4

MOST_TOKENS = 8  # with more, experts are decoded once for many rows


def native(request: Request) -> str | None:
    x, w_out = request.get("x"), request.get("w_out")
    for w in (*request.get("w_in", ()), *(() if w_out is None else (w_out,))):
        if why := not_mxfp4(w):
            return why
    if x is not None and (tokens := math.prod(x.shape[:-1])) > MOST_TOKENS:
        return f"{tokens} tokens; the native kernel is for {MOST_TOKENS} at most"
    return None

"""What backends of matmul leave to others, and why: a function each. No framework here: plans ask."""

import math

from pipeline.ops import Request
from plugins.kernels.native.build import missing
from plugins.kernels.native.scheme import unknown

MOST_ROWS = 8  # of activations: more are a matter of arithmetic, and fewer one of reading weights


def native(request: Request) -> str | None:
    x, w = request.get("x"), request.get("w")
    if w is not None and (why := unknown(w)):
        return why
    if x is not None and (rows := math.prod(x.shape[:-1])) > MOST_ROWS:
        return f"{rows} rows; the native kernel is for {MOST_ROWS} at most"
    return missing()

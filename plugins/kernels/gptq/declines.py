"""What backends of gptq leave to others, and why: a function each. No framework here: plans ask."""

import sys

from pipeline.ops import Request


def native(request: Request) -> str | None:
    x = request.get("x")
    if x is not None and not x.size:
        return "native goes over the elements of an array, and this one has none"
    return None if sys.byteorder == "little" else "the packing views bytes as little-endian words"

"""What backends of embed leave to others, and why: a function each. No framework here: plans ask."""

from pipeline.ops import Request
from plugins.kernels.native.scheme import unknown


def native(request: Request) -> str | None:
    w = request.get("w")
    return None if w is None else unknown(w)

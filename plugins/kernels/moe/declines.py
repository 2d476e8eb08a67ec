"""What backends of moe leave to others, and why: a function each. No framework here: plans ask."""

from pipeline.ops import Request
from plugins.kernels.native.scheme import unknown


def native(request: Request) -> str | None:
    w_out = request.get("w_out")
    reasons = map(unknown, (*request.get("w_in", ()), *(() if w_out is None else (w_out,))))
    return next(filter(None, reasons), None)


native_int8 = native_int16 = native

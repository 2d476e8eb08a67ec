"""What backends of matmul leave to others, and why: a function each. No framework here: plans ask."""

from pipeline.ops import Request
from plugins.kernels.mosaic_gpu.scheme import SIXTEEN, unfit
from plugins.kernels.native.scheme import unknown
from plugins.kernels.pallas.scheme import FLOATS
from plugins.kernels.pallas.scheme import unknown as unread


def native(request: Request) -> str | None:
    w = request.get("w")
    return None if w is None else unknown(w)


native_int8 = native_int16 = native


def mosaic_gpu(request: Request) -> str | None:
    x, w = request.get("x"), request.get("w")
    if x is not None and x.dtype not in SIXTEEN:
        return f"{x.dtype} activations; the kernel multiplies {' and '.join(SIXTEEN)}"
    return None if w is None else unfit(w)


def pallas(request: Request) -> str | None:
    x, w = request.get("x"), request.get("w")
    if x is not None and x.dtype not in FLOATS:
        return f"{x.dtype} activations are not among {', '.join(FLOATS)}"
    return None if w is None else unread(w)

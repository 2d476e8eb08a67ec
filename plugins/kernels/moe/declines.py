"""What backends of moe leave to others, and why: a function each. No framework here: plans ask."""

from pipeline.ops import Request
from pipeline.tensors.spec import TensorSpec
from plugins.kernels.mosaic_gpu.scheme import SIXTEEN, unfit
from plugins.kernels.native.scheme import unknown
from plugins.kernels.pallas.scheme import FLOATS
from plugins.kernels.pallas.scheme import unknown as unread


def native(request: Request) -> str | None:
    return next(filter(None, map(unknown, _weights(request))), None)


native_int8 = native_int16 = native


def pallas(request: Request) -> str | None:
    x = request.get("x")
    if x is not None and x.dtype not in FLOATS:
        return f"{x.dtype} activations are not among {', '.join(FLOATS)}"
    return next(filter(None, map(unread, _weights(request))), None)


def mosaic_gpu(request: Request) -> str | None:
    x = request.get("x")
    if x is not None and x.dtype not in SIXTEEN:
        return f"{x.dtype} activations; the kernel multiplies {' and '.join(SIXTEEN)}"
    return next(filter(None, map(unfit, _weights(request))), None)


def _weights(request: Request) -> tuple[TensorSpec, ...]:
    w_out = request.get("w_out")
    return (*request.get("w_in", ()), *(() if w_out is None else (w_out,)))

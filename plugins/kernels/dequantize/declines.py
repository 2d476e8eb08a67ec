"""What backends of dequantize leave to others, and why: a function each. No framework here: plans ask."""

from pipeline.ops import Request
from plugins.kernels.native.scheme import unknown
from plugins.kernels.pallas.scheme import uncoded


def xla(request: Request) -> str | None:
    dtype = request.get("dtype")
    if dtype in ("BF16", "F32", None):
        return None
    return f"xla decodes to BF16 and F32, not to {dtype}, whose overflows it cannot report"


def pallas(request: Request) -> str | None:
    q, dtype = request.get("q"), request.get("dtype")
    if dtype not in ("BF16", "F32", None):
        return f"pallas decodes to BF16 and F32, not to {dtype}, whose overflows it cannot report"
    if q is None:
        return None
    return "pallas has nothing to do for a tensor without elements" if not q.size else uncoded(q.scheme)


def native(request: Request) -> str | None:
    q = request.get("q")
    return None if q is None else unknown(q)

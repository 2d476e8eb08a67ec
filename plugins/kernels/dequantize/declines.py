"""What backends of dequantize leave to others, and why: a function each. No framework here: plans ask."""

from pipeline.ops import Request
from plugins.kernels.native.scheme import unknown


def xla(request: Request) -> str | None:
    dtype = request.get("dtype")
    if dtype in ("BF16", "F32", None):
        return None
    return f"xla decodes to BF16 and F32, not to {dtype}, whose overflows it cannot report"


def native(request: Request) -> str | None:
    q = request.get("q")
    return None if q is None else unknown(q)

"""What backends of quantize_dequantize leave to others, and why: a function each. No framework here: plans ask."""

from pipeline.ops import Request
from pipeline.tensors.scheme import Scheme
from plugins.kernels.pallas.scheme import uncoded


def under_one(scheme: Scheme | None) -> str | None:
    """Why no scale that was made before is for a scheme, or None."""
    if scheme is None or scheme.second in ("f32", "inverse_f32"):
        return None
    if (scheme.second, scheme.zero, scheme.block_elems, scheme.scale) == (None, None, 0, "f32"):
        return None
    return "one scale of all values, made before, is fp32, of symmetric elements in no blocks, or a second-level scale"


def xla(request: Request) -> str | None:
    x, scheme = request.get("x"), request.get("scheme")
    if request.get("search", "none") != "none":
        return "xla does not search for scales: sums of errors are defined by an order that devices do not keep"
    if request.get("scale") is not None and (why := under_one(scheme)):
        return why
    if request.get("stochastic"):
        return "xla does not round at random: the numbers come from 64-bit integers, which JAX lacks by default"
    if scheme is not None and scheme.second == "dynamic8":
        return "xla does not quantize scales across a whole tensor, which is one order of float64 sums"
    if x is not None and x.dtype not in ("F32", "BF16"):
        return f"xla gives F32 and BF16, not {x.dtype}, whose overflows a program cannot report"
    return None


def pallas(request: Request) -> str | None:
    x, scheme = request.get("x"), request.get("scheme")
    if request.get("scale") is not None:
        return "pallas makes its scales itself"
    if request.get("clipped_gradient"):
        return "pallas passes gradients on as they are, what was saturated too"
    if request.get("search", "none") != "none" or request.get("stochastic"):
        return "pallas neither searches nor rounds at random"
    if scheme is not None and (why := uncoded(scheme)):
        return why
    if request.get("ties") == "up":
        return "ties up is a sum of floats; the kernels round by shifts"
    if x is not None and x.dtype not in ("F32", "BF16"):
        return f"pallas gives F32 and BF16, not {x.dtype}, whose overflows a program cannot report"
    return None

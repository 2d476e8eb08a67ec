"""What backends of quantize leave to others, and why: a function each. No framework here: plans ask."""

import sys
from dataclasses import fields

from pipeline.ops import Request
from plugins.kernels.pallas.scheme import uncoded
from plugins.kernels.quantize.recipe import Recipe, is_fast

FLOATS = ("BF16", "F16", "F32")  # in the order of src/quantize.h


def numpy(request: Request) -> str | None:
    x, scheme = request.get("x"), request.get("scheme")
    if x is not None and not x.size:
        return "numpy goes over the elements of an array, and this one has none"
    if sys.byteorder != "little" and scheme is not None:
        recipe = Recipe(**{f.name: request.given[f.name] for f in fields(Recipe) if f.name in request.given})
        return "the packing views bytes as little-endian words" if is_fast(scheme, recipe) else None
    return None


def xla(request: Request) -> str | None:
    x = request.get("x")
    if request.get("search", "none") != "none" or request.get("stochastic"):
        return "xla neither searches nor rounds at random"
    if (scheme := request.get("scheme")) is not None and scheme.is_struct:
        return f"xla makes no structs of ggml, as {scheme.element} is"
    if x is not None and not x.size:
        return "xla has nothing to do for an array without elements"
    return None


def pallas(request: Request) -> str | None:
    x, scheme = request.get("x"), request.get("scheme")
    if request.get("search", "none") != "none" or request.get("stochastic"):
        return "pallas neither searches nor rounds at random"
    if scheme is not None and (why := uncoded(scheme)):
        return why
    if request.get("ties") == "up":
        return "ties up is a sum of floats; the kernels round by shifts"
    if x is not None and x.dtype not in FLOATS:
        return f"the kernels read {', '.join(FLOATS)}, not {x.dtype}"
    if x is not None and not x.size:
        return "pallas has nothing to do for an array without elements"
    return None


def native(request: Request) -> str | None:
    x = request.get("x")
    if request.get("stochastic"):
        return "native does not round at random"
    if x is not None and x.dtype not in FLOATS:
        return f"the native codec reads {', '.join(FLOATS)}, not {x.dtype}"
    if x is not None and not x.size:
        return "native goes over the elements of an array, and this one has none"
    if sys.byteorder != "little":
        return "the packing views bytes as little-endian words"
    return None

"""What backends of quantize leave to others, and why: a function each. No framework here: plans ask."""

import sys
from dataclasses import fields

from pipeline.ops import Request
from plugins.kernels.quantize.recipe import Recipe, is_fast

FLOATS = ("BF16", "F16", "F32")  # in the order of src/core.cc


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
    if x is not None and not x.size:
        return "xla has nothing to do for an array without elements"
    return None


def native(request: Request) -> str | None:
    scheme, x = request.get("scheme"), request.get("x")
    recipe = Recipe(**{f.name: request.given[f.name] for f in fields(Recipe) if f.name in request.given})
    if scheme is not None and not is_fast(scheme, recipe):
        return "the native codec is MXFP4's: e2m1 in rows, e8m0 scales, no search, ties even, zero or away"
    if x is not None and x.dtype not in FLOATS:
        return f"the native codec reads {', '.join(FLOATS)}, not {x.dtype}"
    return None

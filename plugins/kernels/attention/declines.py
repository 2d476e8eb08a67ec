"""What backends of attention leave to others, and why: a function each. No framework here: plans ask."""

from pipeline.ops import Request

FLOATS = ("F32", "BF16")
PACKED = ("e4m3", "int8")
MOST_DIMS = 256  # of a head: a tile of keys and one of values have to fit a core


def native(request: Request) -> str | None:
    for name in ("k", "v"):
        if (held := request.get(name)) is None:
            continue
        s = held.scheme
        if s is None and held.dtype not in FLOATS:
            return f"{held.dtype} keys or values; the kernels read {', '.join(FLOATS)} and packed ones"
        if s is not None and not (
            s.element in PACKED
            and (s.scale, s.zero, s.second, s.block_rows) == ("f32", None, None, 1)
            and s.block_elems in (0, held.shape[-1])
        ):
            return f"packed keys or values that are not {' or '.join(PACKED)} with one f32 scale a head"
    k, v = request.get("k"), request.get("v")
    if k is not None and v is not None and (k.dtype, k.scheme) != (v.dtype, v.scheme):
        return "keys and values that lie differently"
    return None


def pallas(request: Request) -> str | None:
    q = request.get("q")
    if q is not None and q.dtype not in FLOATS:
        return f"{q.dtype} queries; the kernels take {', '.join(FLOATS)}"
    for name in ("k", "v"):
        if (held := request.get(name)) is None:
            continue
        if held.shape[-1] > MOST_DIMS:
            return f"heads of {held.shape[-1]} dims; the kernels hold at most {MOST_DIMS}"
    return native(request)

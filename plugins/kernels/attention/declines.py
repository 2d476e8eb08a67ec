"""What backends of attention leave to others, and why: a function each. No framework here: plans ask."""

from functools import cache
from importlib import metadata

from pipeline.ops import Request

FLOATS = ("F32", "BF16")
PACKED = ("e4m3", "int8")
SIXTEEN = ("BF16", "F16")
TILED_DIMS = (64, 128)
MOST_DIMS = 256  # of a head: a tile of keys and one of values have to fit a core
MISCOMPILES = (12, 8), (12, 9, 86)  # from, to before; 12.9.86 comes with CUDA 12.9.1
MASK_NBYTES = 64 << 20  # at most; cuDNN adds one of 16 bits to logits


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


def mosaic_gpu(request: Request) -> str | None:
    if request.platform == "gpu" and request.get("causal", True) and (why := _miscompiled()) is not None:
        return why
    q = request.get("q")
    if q is not None and q.dtype not in SIXTEEN:
        return f"{q.dtype} queries; the kernel multiplies {' and '.join(SIXTEEN)}"
    for name in ("k", "v"):
        if (held := request.get(name)) is None:
            continue
        if held.scheme is not None:
            return f"{held.encoding} keys or values; the kernel reads {' and '.join(SIXTEEN)}, unpacked"
        if held.dtype not in SIXTEEN or (q is not None and held.dtype != q.dtype):
            return f"{held.dtype} keys or values; the kernel reads those of the queries' dtype, {' or '.join(SIXTEEN)}"
        if held.shape[-1] not in TILED_DIMS:
            dims = " and ".join(map(str, TILED_DIMS))
            return f"heads of {held.shape[-1]} dims; the kernel has tiles for {dims}"
    return None


@cache
def _miscompiled() -> str | None:
    """ptxas of CUDA 12.8.0 to 12.9.0 compiles a causal kernel of JAX's own wrongly, which JAX refuses then."""
    try:
        ptxas = metadata.version("nvidia-cuda-nvcc-cu12")
    except metadata.PackageNotFoundError:
        return None
    if MISCOMPILES[0] <= tuple(map(int, ptxas.split(".")[:3])) < MISCOMPILES[1]:
        return f"nvidia-cuda-nvcc-cu12 {ptxas} may compile it wrongly; 12.9.86 or later does not"
    return None


def cudnn(request: Request) -> str | None:
    if request.get("softcap") is not None:
        return "cuDNN has no soft cap"
    return _masked(request, "cuDNN", ("BF16", "F16"))


def tokamax(request: Request) -> str | None:
    return _masked(request, "tokamax", ("F32", "BF16", "F16"))


def _masked(request: Request, name: str, floats: tuple[str, ...]) -> str | None:
    """What programs of others lack that know neither sinks nor caches, nor positions but as a mask."""
    if request.get("sinks") is not None:
        return f"{name} has no sinks"
    q, k, v = (request.get(a) for a in ("q", "k", "v"))
    if q is not None and q.dtype not in floats:
        return f"{q.dtype} queries; {name} takes {', '.join(floats)}"
    for held in (k, v):
        if held is None:
            continue
        if held.scheme is not None or held.dtype not in (*FLOATS, "F16"):
            return f"{held.encoding} keys or values; {name} reads {', '.join(floats)}, unpacked"
        if held.shape[-1] > MOST_DIMS:
            return f"heads of {held.shape[-1]} dims; {name} takes at most {MOST_DIMS}"
    if q is not None and k is not None and (nbytes := 2 * q.shape[0] * q.shape[1] * k.shape[1]) > MASK_NBYTES:
        return (
            f"{name} knows positions, of rings or of padding, by a mask alone, and {q.shape[1]} × {k.shape[1]} of them "
            f"take {nbytes >> 20} MiB; at most {MASK_NBYTES >> 20}"
        )
    return None

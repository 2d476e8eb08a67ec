"""Which weights kernels read, and which codes they make, said before anything is traced. No framework here."""

from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from plugins.kernels.codecs.elements import element

FLOATS = ("F32", "BF16", "F16")
BLOCK_NBYTES = 256  # of codes under one scale, at most: a kernel has a block in registers at once
LEAST = 32  # columns that a matrix unit multiplies
CODED = (8, 256)  # values under one scale, from and to, of codes that kernels make and decode


def unknown(w: TensorSpec) -> str | None:
    """Why no kernel reads such weights, None when one does."""
    s = w.scheme
    if s is None:
        return None if w.dtype in FLOATS else f"{w.dtype} weights are not among {', '.join(FLOATS)}"
    if s.is_struct:
        return f"{s.element} is a struct of ggml, which no kernel takes apart"
    if 8 % s.element_bits:
        return f"codes of {s.element_bits} bits straddle bytes; the kernels take those of 2, 4 and 8"
    nbytes = s.block_elems * s.element_bits // 8
    if s.block_elems in (0, w.shape[-1]):
        ragged = s.zero == "min_f16" and w.shape[-1] * s.element_bits // 8 % LEAST
        return f"rows with a minimum that are no multiple of {LEAST} bytes" if ragged else None
    if nbytes & (nbytes - 1) or not 1 <= nbytes <= BLOCK_NBYTES:
        return (
            f"blocks of {s.block_elems} × {s.element_bits} bits; the kernels take those of 2^n bytes, "
            f"at most {BLOCK_NBYTES}"
        )
    return None


def uncoded(s: Scheme) -> str | None:
    """Why no kernel makes or decodes codes of such a scheme, None when one does."""
    if s.is_struct:
        return f"{s.element} is a struct of ggml, which no kernel takes apart"
    if s.scale not in ("e8m0", "e4m3") or s.zero is not None:
        minima = "" if s.zero is None else " and zero points"
        return f"{s.scale} scales{minima}; the kernels make and decode codes under e8m0 and e4m3 ones alone"
    if element(s.element).family == "table":
        return f"{s.element} has a code book, in which the kernels look nothing up"
    low, high = CODED
    if s.block_rows != 1 or s.block_elems & (s.block_elems - 1) or not low <= s.block_elems <= high:
        shape = f"{s.block_rows} × {s.block_elems}" if s.block_rows != 1 else f"{s.block_elems}"
        return f"blocks of {shape}; the kernels have those of 2^n values of a row, {low} to {high}"
    return None

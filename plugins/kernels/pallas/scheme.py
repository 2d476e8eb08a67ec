"""Which weights kernels read, said before anything is traced. No framework here."""

from pipeline.tensors.spec import TensorSpec

FLOATS = ("F32", "BF16", "F16")
BLOCK_NBYTES = 256  # of codes under one scale, at most: a kernel has a block in registers at once
LEAST = 32  # columns that a matrix unit multiplies


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

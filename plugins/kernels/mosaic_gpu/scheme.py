"""Which packed weights the kernels read, said before anything is traced. No framework here."""

from pipeline.tensors.spec import TensorSpec
from plugins.kernels.pallas.scheme import unknown

SIXTEEN = ("BF16", "F16")  # what `wgmma` multiplies, of what models have
LEAST_NBYTES = 8  # of codes under one scale: among those of a step of 64 bytes, each code chooses its own


def unfit(w: TensorSpec) -> str | None:
    """Why the kernels do not read such weights, None when they do."""
    s = w.scheme
    if s is None:
        return f"plain {w.dtype} weights, which XLA's product reads; the kernel decodes packed ones"
    if why := unknown(w):
        return why
    nbytes = s.block_elems * s.element_bits // 8
    if s.block_elems not in (0, w.shape[-1]) and nbytes < LEAST_NBYTES:
        block = f"{s.block_elems} × {s.element_bits} bits"
        return f"blocks of {block}; the kernel takes those of at least {LEAST_NBYTES} bytes"
    return None

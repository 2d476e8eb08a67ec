"""How kernels are lowered for NVIDIA's GPUs, in one place: by way of Triton.

JAX is leaving Triton: a later version warns, and then drops it. What comes after it, Mosaic GPU, wants programs that
are written for it (`plgpu.kernel`: copies to shared memory, barriers, layouts of warpgroups). A `pallas_call` without
parameters of Triton's goes there, with a warning, and these kernels fail ("No support for axes yet"). So the
parameters are always given, never left to a default that moves, and what replaces them replaces this module.
"""

from typing import Any

from jax.experimental.pallas import triton

PLATFORM = "cuda"


load, store = triton.load, triton.store


def parameters(warps: int, stages: int) -> Any:
    """Compiler parameters of a kernel that runs as `warps` warps and asks for memory `stages` steps of a loop ahead."""
    return triton.CompilerParams(num_warps=warps, num_stages=stages)

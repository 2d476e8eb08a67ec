"""The ops a model calls, with their backends, as one value that is handed to it."""

from dataclasses import dataclass, fields

from pipeline.ops import Kernel


@dataclass(frozen=True)
class Ops:
    """Frozen and hashable: a model with other kernels is another compilation."""

    matmul: Kernel
    embed: Kernel
    moe: Kernel
    attention: Kernel
    softmax: Kernel
    rms_norm: Kernel
    rope: Kernel

    def on(self, platform: str) -> "Ops":
        """The same for a device of that platform, as JAX names it."""
        return Ops(*(getattr(self, f.name).on(platform) for f in fields(self)))

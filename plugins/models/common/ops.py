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

    @property
    def backends(self) -> frozenset[str]:
        """Names of all that are chosen for any op."""
        return frozenset(name for f in fields(self) for name in getattr(self, f.name).backends)

    def that_take(self, backend: str) -> list[str]:
        """Names of the ops for which a backend is chosen."""
        return [f.name for f in fields(self) if backend in getattr(self, f.name).backends]

    def named(self) -> "Ops":
        """The same without `fastest`: that is measured of what a model gives, and not of gradients."""
        return Ops(*(getattr(self, f.name).named() for f in fields(self)))

    def on(self, platform: str, device: str = "") -> "Ops":
        """The same for a device of that platform and kind, as JAX names them."""
        return Ops(*(getattr(self, f.name).on(platform, device) for f in fields(self)))

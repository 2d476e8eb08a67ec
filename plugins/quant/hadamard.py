"""Hadamard rotations: what a few channels have much of, all get a little of (Ashkboos et al. 2024, QuaRot).

A Hadamard matrix of ±1 is there for every power of two. Of a width 2^k·m, m odd, it is the product ⊗ of that of 2^k and
an orthogonal matrix of m that QR makes of seeded random numbers; or blocks of 2^b columns are rotated, each by itself.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pipeline.errors import ConfigError


@dataclass(frozen=True)
class Hadamard:
    """See `pipeline.tensors.rotation.Rotation`.

    Attributes:
        block: channels that are rotated together, a power of two that divides the width; None: all of them.
        seed: of signs, which half of the channels have turned around before, and of the orthogonal matrix.
    """

    block: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.block is not None and (self.block < 2 or self.block & (self.block - 1)):
            raise ConfigError(f"calibrate.rotate.block={self.block}: a power of two is needed, 2 or more, or null")
        if self.seed < 0:
            raise ConfigError(f"calibrate.rotate.seed={self.seed}: 0 or more is needed")

    def problem(self, width: int) -> str | None:
        """See `pipeline.tensors.rotation.Rotation`."""
        if self.block is None or width % self.block == 0:
            return None
        return f"blocks of {self.block} do not divide {width} channels; {width & -width} is the largest that does"

    def apply(self, x: Any) -> Any:
        """See `pipeline.tensors.rotation.Rotation`."""
        n = x.shape[-1]
        signs, odd, hadamard = _parts(n, self.block or n & -n, self.seed)
        y = (x * signs).reshape(*x.shape[:-1], -1, len(hadamard)) @ hadamard
        return (y if self.block is not None else np.einsum("...op,oq->...qp", y, odd, optimize=True)).reshape(x.shape)


@lru_cache(maxsize=8)
def _parts(n: int, size: int, seed: int) -> tuple[Any, Any, Any]:
    """Signs [n], an orthogonal matrix of n / size, and the Hadamard matrix of `size` (Sylvester's), all fp32."""
    rng = np.random.default_rng([seed, n])
    signs = rng.choice(np.array([-1, 1], np.float32), n)
    m = n // size
    q, r = np.linalg.qr(rng.standard_normal((m, m)))
    h = np.ones((1, 1))
    while len(h) < size:
        h = np.block([[h, h], [h, -h]])
    return signs, (q * np.sign(np.diag(r))).astype(np.float32), (h / np.sqrt(size)).astype(np.float32)

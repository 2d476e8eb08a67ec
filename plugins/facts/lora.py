"""What a low-rank adapter is, whoever trained it: the numbers that are added to a tensor, or to a stack of experts.

w + scale · b · a, scale = alpha / r, or alpha / √r (rsLoRA, arXiv 2312.03732)

r rank, E experts
"""

from dataclasses import dataclass
from typing import Any

import numpy as np


def scale_of(alpha: float, rank: int, *, rslora: bool) -> float:
    """The factor on what is added."""
    return alpha / (rank**0.5 if rslora else rank)


@dataclass(frozen=True, eq=False)
class Layer:
    """What is added to one parameter.

    Attributes:
        names: the tensors that it is: one, or those of all experts in order, where files have them one by one.
        a: float32 `[r, in]`; of experts `[E, r, in]`.
        b: float32 `[out, r]`; of experts `[out, r, E]`, as PEFT has them (peft, tuners/lora/layer.py, ParamWrapper).
        alpha, rslora: see the module.
    """

    names: tuple[str, ...]
    a: Any
    b: Any
    alpha: float
    rslora: bool = False

    @property
    def rank(self) -> int:
        return int(self.a.shape[-2])

    @property
    def scale(self) -> float:
        return scale_of(self.alpha, self.rank, rslora=self.rslora)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the parameter."""
        return (*self.a.shape[:-2], self.b.shape[0], self.a.shape[-1])

    def delta(self, name: str, box: tuple[slice, ...]) -> Any:
        """float32, what is added to the box of the tensor `name`."""
        *expert, rows, columns = box
        if self.a.ndim == 2:
            return np.float32(self.scale) * (self.b[rows] @ self.a[:, columns])
        if len(self.names) > 1:
            at = self.names.index(name)
            return np.float32(self.scale) * (self.b[rows, :, at] @ self.a[at, :, columns])
        a, b = self.a[expert[0], :, columns], np.moveaxis(self.b[rows, :, expert[0]], 2, 0)
        return np.float32(self.scale) * (b @ a)

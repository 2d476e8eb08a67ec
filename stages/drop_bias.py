"""Drop bias: say here what the stage does to a checkpoint, and why."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from pipeline.stage import Checkpoint, Context


@dataclass(frozen=True)
class DropBias:
    """Multiply tensors by a factor.

    Attributes:
        factor: what values are multiplied by.
        select: which tensors, as a shell pattern.
    """

    factor: float = 0.5
    select: str = "*"

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        """A lazy view: nothing is read until somebody writes, and then one box at a time, in many tasks."""
        return checkpoint.map(partial(scaled, factor=self.factor), self.select)


def scaled(values: Any, factor: float) -> Any:
    """`values` times `factor`, in their own dtype. Sees a box at a time, so it must work element by element."""
    return (values * factor).astype(values.dtype)

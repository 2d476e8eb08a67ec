"""Teach: another checkpoint, which no stage changes, for a training to learn of (distillation)."""

from dataclasses import dataclass

from pipeline.stage import Context
from pipeline.training import Teacher
from stages.load import Load


@dataclass(frozen=True)
class Teach:
    """The checkpoint that `load` opens, as a teacher.

    Attributes:
        load: where it lies, and what opens it.
    """

    load: Load

    def run(self, ctx: Context) -> Teacher:
        """
        Raises:
            SourceError, PlanError: see `stages.load.Load.run`.
        """
        return Teacher(self.load.run(ctx))

"""Shard: how the weights will lie over the devices that run the model. Known from config.json and specs alone."""

from dataclasses import dataclass, field, replace

from pipeline.engine import Engine, EngineHooks
from pipeline.errors import PlanError, Problem
from pipeline.hooks import optional
from pipeline.mesh import PICTURE, Mesh, Placement
from pipeline.stage import NEUTRAL, Checkpoint, Context


@dataclass(frozen=True)
class Shard:
    """View a checkpoint with the layout of every tensor over `mesh`. No byte of it changes, so exports do not depend on
    it.

    Attributes:
        mesh: how devices are arranged, and what is divided over them.
        engine: knows the model's parameters.
    """

    mesh: Mesh
    engine: Engine = field(metadata=NEUTRAL)  # what is computed with it counts where it is computed

    @property
    def writes(self) -> tuple[str, ...]:
        """See `pipeline.stage.StageHooks`: a picture of which device holds what."""
        return (PICTURE,) if self.mesh.size > 1 else ()

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        """
        Raises:
            PlanError: the mesh does not fit the model; all problems at once.
        """
        if self.mesh.size == 1:
            return replace(checkpoint, placement=Placement(self.mesh))
        place = optional(self.engine, EngineHooks, "placement")
        if place is None:
            text = f"{type(self.engine).__name__} runs models on one device; mesh=single is that"
            raise PlanError([Problem("mesh", text)])
        return replace(checkpoint, placement=place(checkpoint, self.mesh))

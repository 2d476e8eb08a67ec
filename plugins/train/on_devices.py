"""What lies on devices while a model is trained, and what they send each other; known without a framework."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from pipeline.mesh import Layout, Mesh, Parameter, Step
from pipeline.planning.layout import lay_out
from pipeline.planning.mesh_costs import weights_nbytes
from pipeline.planning.reading import bytes_read
from pipeline.stage import Checkpoint
from pipeline.tensors.spec import TensorSpec
from plugins.models.device import device_nbytes, device_spec
from plugins.train.exchanges import Update
from plugins.train.transform import Freezing, Transform


@dataclass(frozen=True)
class OnDevices:
    """A model that is trained.

    Attributes:
        mesh: the devices.
        parameters: of the model.
        checkpoint: whose weights it begins with.
        ignored: its tensors that the model does not read.
        result: tensor → spec, of what comes out.
        transform: see `plugins.train.trainer.Trainer`; `freezing` is the same where weights stay what they are.
        dtype: of activations.
    """

    mesh: Mesh
    parameters: Sequence[Parameter]
    checkpoint: Checkpoint
    ignored: Mapping[str, str]
    result: Mapping[str, TensorSpec]
    transform: Transform | None
    freezing: Freezing | None
    dtype: Literal["bf16", "f32"]

    @property
    def base(self) -> Checkpoint:
        """Whose weights it begins with, or keeps."""
        return self.checkpoint if self.freezing is None else self.freezing.base(self.checkpoint)

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """Tensor → how it lies: as a fp32 master; or, where it stays what it is, as the model computes with it."""
        held = {n: s for n, s in self.base.store.specs.items() if n not in self.ignored}
        if self.freezing is None:
            return {n: TensorSpec(s.shape, "F32") for n, s in held.items()}
        return {n: device_spec(s, self.dtype) for n, s in held.items()}

    def layouts(self) -> dict[str, Layout]:
        """How the model's parameters lie over the mesh.

        Raises:
            PlanError: it does not fit the model.
        """
        parameters = self.parameters
        if self.transform is not None:
            parameters = self.transform.uncut(parameters, self.result)
        return lay_out(self.mesh, parameters, self.specs)

    def amounts(self) -> tuple[int, int]:
        """Numbers that are trained, and bytes of weights that stay as they are, on each device.

        Raises:
            PlanError: the mesh does not fit the model.
        """
        mesh, specs, freezing = self.mesh, self.specs, self.freezing
        if mesh.size == 1:
            held = device_nbytes(specs, self.ignored)
            trained = sum(map(prod, freezing.trained(self.parameters).values())) if freezing is not None else 0
        else:
            layouts = self.layouts()
            held = weights_nbytes(mesh, self.parameters, specs, layouts)
            beside = {} if freezing is None else freezing.lies(self.parameters, layouts)
            trained = sum(prod(lies.local_shape(mesh)) for lies in beside.values())
        return (held // 4, 0) if freezing is None else (trained, held)

    def exchanged(self, rows: int, micros: int, tokens: int) -> tuple[Step, ...]:
        """What devices send each other for an update.

        Args:
            rows: examples of a micro-batch, of which there are `micros`.
            tokens: of an example.
        """
        if self.mesh.size == 1:
            return ()
        layouts, specs, wide = self.layouts(), self.specs, "BF16" if self.dtype == "bf16" else "F32"
        if self.freezing is None:  # gathered as they are computed with
            specs = {n: TensorSpec(s.shape, wide if len(s.shape) > 1 else "F32") for n, s in specs.items()}
        chosen = self.checkpoint.config.get("num_experts_per_tok")
        update = Update(
            self.mesh, self.parameters, layouts, specs,
            adapters=None if self.freezing is None else self.freezing.lies(self.parameters, layouts),
            tokens=rows // self.mesh.ways(self.mesh.over("batch")) * tokens,
            micros=micros,
            activation_nbytes=2 if wide == "BF16" else 4,
            chosen=chosen if isinstance(chosen, int) else 0,
        )  # fmt: skip
        return (update.step,)

    def reads(self) -> tuple[int, ...]:
        """Bytes of weights that each host reads."""
        if self.mesh.size == 1:
            return ()
        return tuple(bytes_read(self.base.store, self.mesh, self.parameters, self.layouts(), self.mesh.hosts))

"""The engine as a plugin node: which families there are, which kernels they use, and in what dtypes they run."""

from dataclasses import dataclass
from typing import Any, Literal

from pipeline.ops import Kernel
from pipeline.stage import Checkpoint
from plugins.models.common.ops import Ops
from plugins.models.device import Hold, device_nbytes
from plugins.models.family import Family, family_of


@dataclass(frozen=True)
class Engine:
    """JAX on one device.

    Attributes:
        families: the first whose `model_types` name the checkpoint's builds the model.
        ops: kernels of the model.
        cast: widens or narrows plain weights that `hold` wants in another dtype.
        dtype: of activations; `auto`: fp32 on CPU, where bf16 is emulated, bf16 elsewhere.
        hold: dtype of plain weights on the device; `keep`: as stored. Packed ones stay packed.
        cache: dtype of the KV cache; `auto`: as activations.
        device: `auto` is JAX's default; or `cpu`, `gpu`, `tpu`, with a number: `gpu:1`.
    """

    families: tuple[Family, ...]
    ops: Ops
    cast: Kernel
    dtype: Literal["auto", "bf16", "f32"] = "auto"
    hold: Hold = "keep"
    cache: Literal["auto", "bf16", "f32", "fp8", "int8"] = "auto"
    device: str = "auto"

    def plan(self, checkpoint: Checkpoint) -> int:
        """Bytes that the weights will take on the device.

        Raises:
            PlanError: no family knows the model.
        """
        family_of(checkpoint.config, self.families)
        return device_nbytes(checkpoint.store.specs, checkpoint.config, self.hold)

    def load(self, checkpoint: Checkpoint) -> Any:
        """A `plugins.engine.runtime.Runtime`.

        Raises:
            PlanError: config.json or the tensors do not fit the model; all problems at once.
            ConfigError: no such device.
        """
        from plugins.engine.start import start

        return start(self, checkpoint)

"""Small convolutional networks, as a plugin node."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.mesh import Parameter


@dataclass(frozen=True)
class Cnn:
    """A `plugins.models.family.Family`."""

    model_types: ClassVar[tuple[str, ...]] = ("cnn",)
    tied: ClassVar[bool] = False

    def parameters(self, config: Mapping[str, Any]) -> tuple[Parameter, ...]:
        from plugins.models.cnn.parameters import parameters

        return parameters(config)

    def build(self, config: Mapping[str, Any], weights: Any, ops: Any, dtype: str) -> Any:
        from plugins.models.cnn.model import build

        return build(config, weights, ops, dtype)

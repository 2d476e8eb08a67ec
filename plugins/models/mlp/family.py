"""Multilayer perceptrons, as a plugin node."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.mesh import Parameter


@dataclass(frozen=True)
class Mlp:
    """A `plugins.models.family.Family`."""

    model_types: ClassVar[tuple[str, ...]] = ("mlp",)
    tied: ClassVar[bool] = False

    def parameters(self, config: Mapping[str, Any]) -> tuple[Parameter, ...]:
        from plugins.models.mlp.parameters import parameters

        return parameters(config)

    def build(self, config: Mapping[str, Any], weights: Any, ops: Any, dtype: str) -> Any:
        from plugins.models.mlp.model import build

        return build(config, weights, ops, dtype)

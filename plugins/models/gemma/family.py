"""Gemma 3 (text), as a plugin node."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Gemma:
    """A `plugins.models.family.Family`."""

    model_types: ClassVar[tuple[str, ...]] = ("gemma3_text",)
    tied: ClassVar[bool] = True

    def build(self, config: Mapping[str, Any], weights: Any, ops: Any, dtype: str) -> Any:
        from plugins.models.gemma.model import build

        return build(config, weights, ops, dtype)

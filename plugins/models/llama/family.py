"""Llama 2 and 3, Mistral, SmolLM2, as a plugin node."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Llama:
    """A `plugins.models.family.Family`."""

    model_types: ClassVar[tuple[str, ...]] = ("llama", "mistral")
    tied: ClassVar[bool] = False

    def build(self, config: Mapping[str, Any], weights: Any, ops: Any, dtype: str) -> Any:
        from plugins.models.llama.model import build

        return build(config, weights, ops, dtype)

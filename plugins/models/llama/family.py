"""Llama 2 and 3, Mistral, SmolLM2, as a plugin node."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pipeline.mesh import Parameter
from pipeline.topology import Feeds
from plugins.facts import mistral
from plugins.models.common.feeds import ATTENTION, FINAL, GATE_UP, MLP, feeds


@dataclass(frozen=True)
class Llama:
    """A `plugins.models.family.Family`."""

    model_types: ClassVar[tuple[str, ...]] = ("llama", *mistral.FAMILIES)
    tied: ClassVar[bool] = False

    published: ClassVar[Path] = Path(__file__).with_name("published")
    feeds: ClassVar[tuple[Feeds, ...]] = (*ATTENTION, FINAL, feeds("post_attention_layernorm.weight", GATE_UP), MLP)

    def parameters(self, config: Mapping[str, Any]) -> tuple[Parameter, ...]:
        from plugins.models.llama.parameters import parameters

        return parameters(config)

    def build(self, config: Mapping[str, Any], weights: Any, ops: Any, dtype: str) -> Any:
        from plugins.models.llama.model import build

        return build(config, weights, ops, dtype)

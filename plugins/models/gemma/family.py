"""Gemma 3 (text), as a plugin node."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from pipeline.mesh import Parameter
from pipeline.topology import Feeds
from plugins.models.common.feeds import ATTENTION, FINAL, GATE_UP, MLP, feeds


@dataclass(frozen=True)
class Gemma:
    """A `plugins.models.family.Family`."""

    model_types: ClassVar[tuple[str, ...]] = ("gemma3_text",)
    tied: ClassVar[bool] = True

    constants: ClassVar[Mapping[str, float]] = {"*norm.weight": 0.0}  # 1 is added to it
    published: ClassVar[Path] = Path(__file__).with_name("published")
    # The other two norms of a layer give what is added to hidden states, which no factor can be taken out of.
    feeds: ClassVar[tuple[Feeds, ...]] = (
        *(replace(feed, plus_one="norm" in feed.source) for feed in (*ATTENTION, FINAL)),
        feeds("pre_feedforward_layernorm.weight", GATE_UP, plus_one=True),
        MLP,
    )

    def parameters(self, config: Mapping[str, Any]) -> tuple[Parameter, ...]:
        from plugins.models.gemma.parameters import parameters

        return parameters(config)

    def build(self, config: Mapping[str, Any], weights: Any, ops: Any, dtype: str) -> Any:
        from plugins.models.gemma.model import build

        return build(config, weights, ops, dtype)

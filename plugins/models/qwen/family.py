"""Qwen2, Qwen3 and Qwen3-MoE, as a plugin node."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pipeline.mesh import Parameter
from pipeline.topology import Feeds
from plugins.models.common.feeds import ATTENTION, FINAL, GATE_UP, MLP, feeds


@dataclass(frozen=True)
class Qwen:
    """A `plugins.models.family.Family`."""

    model_types: ClassVar[tuple[str, ...]] = ("qwen2", "qwen3", "qwen3_moe")
    tied: ClassVar[bool] = False

    published: ClassVar[Path] = Path(__file__).with_name("published")
    # A layer is dense or sparse; a sparse one's router, `mlp.gate`, multiplies what its experts do.
    feeds: ClassVar[tuple[Feeds, ...]] = (
        *ATTENTION,
        FINAL,
        feeds(
            "post_attention_layernorm.weight",
            (*GATE_UP, "mlp.gate.weight", "mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight"),
        ),
        MLP,
        feeds("mlp.experts.*.up_proj.weight", ["mlp.experts.*.down_proj.weight"]),
    )

    def parameters(self, config: Mapping[str, Any]) -> tuple[Parameter, ...]:
        from plugins.models.qwen.parameters import parameters

        return parameters(config)

    def build(self, config: Mapping[str, Any], weights: Any, ops: Any, dtype: str) -> Any:
        from plugins.models.qwen.model import build

        return build(config, weights, ops, dtype)

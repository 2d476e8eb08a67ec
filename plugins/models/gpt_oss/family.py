"""gpt-oss, as a plugin node."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pipeline.mesh import Parameter
from pipeline.topology import Feeds
from plugins.facts.gpt_oss import FAMILY
from plugins.models.common.feeds import ATTENTION, FINAL, feeds


@dataclass(frozen=True)
class GptOss:
    """A `plugins.models.family.Family`."""

    model_types: ClassVar[tuple[str, ...]] = (FAMILY,)
    tied: ClassVar[bool] = False

    # As transformers begins (`GptOssPreTrainedModel._init_weights`): sinks and the router's bias are random.
    constants: ClassVar[Mapping[str, float]] = {"*norm.weight": 1.0, "*_proj.bias": 0.0, "*_proj_bias": 0.0}
    published: ClassVar[Path] = Path(__file__).with_name("published")
    # What experts make of gate and up is clamped, and 1 is added to it: no factor goes through that to `down_proj`.
    feeds: ClassVar[tuple[Feeds, ...]] = (
        *ATTENTION,
        FINAL,
        feeds("post_attention_layernorm.weight", ["mlp.router.weight", "mlp.experts.gate_up_proj"]),
    )

    def parameters(self, config: Mapping[str, Any]) -> tuple[Parameter, ...]:
        from plugins.models.gpt_oss.parameters import parameters

        return parameters(config)

    def build(self, config: Mapping[str, Any], weights: Any, ops: Any, dtype: str) -> Any:
        from plugins.models.gpt_oss.model import build

        return build(config, weights, ops, dtype)

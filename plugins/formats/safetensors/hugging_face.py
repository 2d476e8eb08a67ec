"""Hugging Face's own naming for whatever model it is: what `transformers` loads without an extension.

gpt-oss has a packing of its own, all other models have none: their tensors lie under their names. Checkpoints that are
packed in a library's way are that library's dialects (compressed-tensors, ModelOpt, bitsandbytes).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.errors import PlanError, Problem
from pipeline.tensors.binding import Binding
from pipeline.tensors.spec import TensorSpec
from plugins.facts.gpt_oss import is_gpt_oss
from plugins.formats.gpt_oss.dialect import GptOss
from plugins.formats.safetensors.plain import Plain

CURE = "export.dtype=bf16 writes its values, and export=auto takes what can hold it"


@dataclass(frozen=True, slots=True)
class HuggingFaceDialect:
    """Chosen by config.json's `model_type`."""

    companions: ClassVar[tuple[str, ...]] = ()

    def recognizes(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> bool:
        """Everything but gpt-oss under other names: to be asked last."""
        return not is_gpt_oss(config) or GptOss().recognizes(leaves, config)

    def decode(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.decode`."""
        return (GptOss() if is_gpt_oss(config) else Plain()).decode(leaves, config)

    def encode(self, tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.encode`; of models other than gpt-oss it refuses every scheme."""
        if is_gpt_oss(config):
            return GptOss().encode(tensors, config)
        kind = f"Hugging Face has no packing for model_type {config.get('model_type')!r}"
        problems = [
            Problem(name, f"is quantized ({spec.encoding}); {kind}: {CURE}")
            for name, spec in tensors.items()
            if spec.scheme is not None
        ]
        if problems:
            raise PlanError(problems)
        return Plain().encode(tensors, config)

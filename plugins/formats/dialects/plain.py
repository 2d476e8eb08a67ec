"""No dialect: logical tensors are the leaves, by name, shape and orientation.

For exchanging canonical tensors (`numpy` folders) and for checkpoints that no other dialect knows. It knows no model
and no packing, so it can neither check a checkpoint nor hold a quantized tensor.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.errors import PlanError, Problem
from pipeline.formats import Binding, Bound, Part
from pipeline.tensors.spec import TensorSpec


@dataclass(frozen=True, slots=True)
class Plain:
    """One leaf per tensor, under its own name."""

    companions: ClassVar[tuple[str, ...]] = ()

    def recognizes(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> bool:
        """Everything: it is to be asked last."""
        return True

    def decode(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.decode`; accepts any leaves."""
        return _bind(leaves, config)

    def encode(self, tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.encode`; refuses every scheme."""
        problems = [
            Problem(
                name, f"is quantized ({spec.encoding}); plain leaves hold values only: dequantize it before exporting"
            )
            for name, spec in tensors.items()
            if spec.scheme is not None
        ]
        if problems:
            raise PlanError(problems)
        return _bind(tensors, config)


def _bind(specs: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
    return Binding(
        tensors={name: Bound(spec, (Part(name),)) for name, spec in specs.items()},
        leaves=dict(specs),
        config={k: v for k, v in config.items() if k != "quantization_config"},
    )

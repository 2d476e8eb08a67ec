"""No dialect: every logical tensor is a leaf of its own name, and lies in it as Hugging Face's names mean it.

That is as it is, but for gpt-oss's stacks of experts, which transformers keep transposed, [E, in, out] (see `experts`).
For exchanging tensors (`numpy` folders) and for checkpoints that no other dialect knows. It knows no packing and no
model's table, so it can neither check a checkpoint nor hold a quantized tensor.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.errors import PlanError, Problem, did_you_mean, short, some
from pipeline.tensors.binding import Binding, Bound, Part
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.views import stored_leaves
from plugins.formats.common import experts, outlines

READ = ("awq", "bitsandbytes", "compressed-tensors", "fp8", "gptq", "modelopt", "mxfp4 of gpt-oss")
"""What the dialects before it read, by quant_method."""


@dataclass(frozen=True, slots=True)
class Plain:
    """One leaf per tensor, under its own name."""

    companions: ClassVar[tuple[str, ...]] = ()

    def recognizes(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> bool:
        """Everything: it is to be asked last."""
        return True

    def decode(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.decode`; accepts any leaves, unless config.json says that they are quantized, in a way that no
        dialect before this one knows. Stacks of experts that lie as [E, out, in] (older exports) are told by their
        shapes and taken as they are."""
        if given := config.get("quantization_config"):
            method = given.get("quant_method")
            text = f"says quant_method {method!r:.80}, which is not read{did_you_mean(str(method), READ)}"
            if method is None:
                there = some([short(str(key)) for key in given])
                text = f"has {there}, and no quant_method, which says how they are meant (read: {', '.join(READ)})"
            raise PlanError([Problem("config.json quantization_config", f"{text}; without it weights are plain")])
        if packed := next((n for n in leaves if n.endswith(".qweight")), None):
            text = "is packed by GPTQ or AWQ, and neither quantization_config of config.json says how, nor"
            raise PlanError([Problem(packed, f"{text} quantize_config.json (GPTQ's) or quant_config.json (AWQ's)")])
        if experts.are_unturned(leaves, config):
            return _binding({name: Bound(spec, (Part(name),)) for name, spec in leaves.items()}, leaves, config)
        return _binding({n: experts.plain_bound(n, spec, config) for n, spec in leaves.items()}, leaves, config)

    def outline(
        self, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]
    ) -> Mapping[str, TensorSpec] | None:
        """See `pipeline.formats.DialectHooks`."""
        return None if config.get("quantization_config") else outlines.plain(shapes, config)

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
        bounds = {n: Bound(spec, experts.plain_parts(n, spec, config)) for n, spec in tensors.items()}
        return _binding(bounds, stored_leaves(bounds), config)


def _binding(tensors: Mapping[str, Bound], leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
    without = {k: v for k, v in config.items() if k != "quantization_config"}
    return Binding(tensors=tensors, leaves=dict(leaves), config=without)

"""config.json of a multilayer perceptron and its parameters, for the model and for plans, which build none.

inputs         numbers of a row, or the shape of one, which is flattened
hidden_sizes   of each layer
outputs        one, the value; or one for each class
hidden_act     after each layer, as in config.json of language models
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from pipeline.mesh import Parameter
from plugins.models.common.parameters import Dim, linear
from plugins.models.common.rows import RowSettings


@dataclass(frozen=True, slots=True)
class Numbers:
    """config.json, checked.

    Attributes:
        sizes: of what goes into each layer, and of what comes out of the last.
    """

    sizes: tuple[int, ...]
    act: str

    @classmethod
    def read(cls, config: Mapping[str, Any], tensors: int | None = None) -> "Numbers":
        """By `RowSettings`, whose errors it raises."""
        s = RowSettings(config, tensors)
        sizes, act = (prod(s.inputs), *s.sizes("hidden_sizes"), s.outputs), s.activation("hidden_act", "silu")
        s.check()
        return cls(sizes, act)

    @property
    def layers(self) -> Iterator[tuple[str, int, int]]:
        """Name, outputs and inputs of each layer; the last is the head."""
        last = len(self.sizes) - 2
        for i, (into, out) in enumerate(zip(self.sizes[:-1], self.sizes[1:], strict=True)):
            yield f"layers.{i}" if i < last else "head", out, into


def parameters(config: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """See `plugins.models.family.Family.parameters`."""
    layers = Numbers.read(config).layers
    return tuple(p for name, out, into in layers for p in linear(name, Dim(out, "embed"), Dim(into, "head"), bias=True))

"""config.json of a small convolutional network and its parameters, for the model and for plans, which build none.

    inputs         [height, width, channels]
    hidden_sizes   channels after each layer
    strides        of each layer
    kernel_size    height and width of every filter, odd
    outputs        one for each class, or one, the value
    hidden_act     after each layer, as in config.json of language models
    rms_norm_eps   of the norm before it

A filter lies as a row of a matrix, so that kernels and quantization take it like any linear layer: [out, height · width
· channels], the channels next to each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.mesh import Parameter
from plugins.models.common.parameters import Dim, Table, linear, norms
from plugins.models.common.rows import RowSettings


@dataclass(frozen=True, slots=True)
class Numbers:
    """config.json, checked.

    Attributes:
        channels: of what goes into each layer, and of what comes out of the last.
        places: of each layer's result, height times width.
    """

    channels: tuple[int, ...]
    places: tuple[int, ...]
    strides: tuple[int, ...]
    kernel: int
    outputs: int
    act: str
    eps: float

    @classmethod
    def read(cls, config: Mapping[str, Any], tensors: int | None = None) -> "Numbers":
        """By `RowSettings`, whose errors it raises."""
        s = RowSettings(config, tensors)
        sizes, kernel = s.sizes("hidden_sizes"), s.count("kernel_size", 3)
        strides = s.sizes("strides") if "strides" in config else (1,) * len(sizes)
        s.require("strides", len(strides) == len(sizes), f"{list(strides)}: one for each of {len(sizes)} layers")
        s.require("kernel_size", kernel % 2 == 1, f"{kernel}: an odd number is expected")
        s.require("inputs", len(s.inputs) == 3, f"{list(s.inputs)}: height, width and channels are expected")
        act, eps = s.activation("hidden_act", "silu"), s.positive("rms_norm_eps", 1e-6)
        s.check()
        height, width, channels = s.inputs
        places = []
        for stride in strides:
            height, width = -(-height // stride), -(-width // stride)
            places.append(height * width)
        return cls((channels, *sizes), tuple(places), strides, kernel, s.outputs, act, eps)


def parameters(config: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """See `plugins.models.family.Family.parameters`."""
    c = Numbers.read(config)

    def table() -> Table:
        for i, (into, out) in enumerate(zip(c.channels[:-1], c.channels[1:], strict=True)):
            where = f"layers.{i}"
            filters = Dim(out, "embed"), Dim(c.kernel**2 * into, "head")
            yield from linear(f"{where}.conv", *filters, bias=True, places=c.places[i])
            yield from norms(where, ("norm",), out)
        yield from linear("head", Dim(c.outputs, "embed"), Dim(c.channels[-1], "head"), bias=True)

    return tuple(table())

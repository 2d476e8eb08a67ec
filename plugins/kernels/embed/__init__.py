"""embed: rows of an embedding matrix that may stay packed.

    embed(ids, w, *, dtype) -> array [..., D] of dtype

`ids` `[...]` are int32, `w` `[V, D]` is an array or a QTensor. Only the rows asked for are gathered and decoded, as
`dequantize` says. An id outside 0 … V-1 is the caller's mistake: the reference raises IndexError, where jit takes
the nearest row.
"""

from dataclasses import dataclass
from typing import ClassVar

from pipeline.ops import Kernel, Op

OP = Op(
    "embed",
    {
        "reference": "plugins.kernels.embed.reference:embed",
        "xla": "plugins.kernels.embed.xla:embed",
    },
)


@dataclass(frozen=True)
class Embed(Kernel):
    """The embed op with its backends, as a plugin node."""

    op: ClassVar[Op] = OP
    backends: tuple[str, ...] = ("xla",)

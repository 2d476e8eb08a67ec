"""quantize, dequantize, quantize_dequantize and cast: what conversion and training with rounding do."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal

from pipeline.bench.op import Case, Part
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.testing.memory import cut
from plugins.bench.ops import data


@dataclass(frozen=True)
class Codec:
    """See `pipeline.bench.op.Suite`.

    Attributes:
        op: which of them.
        size: [rows, n] of the values, bfloat16 from N(0, 1).
        formats: that they are coded in.
    """

    op: Literal["quantize", "dequantize", "quantize_dequantize"]
    size: tuple[int, ...]
    formats: tuple[str, ...]

    def __post_init__(self) -> None:
        data.check("bench.packed", self.formats, plain=False)
        data.sizes("bench.matrix", self.size, 2)

    @property
    def nbytes(self) -> int:
        return 8 * prod(self.size)

    def cases(self) -> Iterator[Case]:
        x = data.values(self.size, data.PLAIN["bf16"])
        for name in self.formats:
            scheme, recipe = data.FORMATS[name]
            packed = Kernel("quantize", ("native", "numpy", "reference"))(x, scheme, **recipe)
            nbytes = x.nbytes + (x.nbytes if self.op == "quantize_dequantize" else packed.nbytes)
            where = f"{name} [{self.size[0]}, {self.size[1]}]"
            args, options = ((packed,), {}) if self.op == "dequantize" else ((x, scheme), dict(recipe))
            apart = scheme.second is None and scheme.block_rows == 1  # a row is coded without the others
            parts = self._rows(x, packed, args, options) if apart else (Part(args, options, _whole, "numpy"),)
            if not apart and self.op == "quantize_dequantize":
                continue  # which has no other backend to be held to
            yield Case(self.op, where, args, options, 0.0, nbytes, parts, host=self.op != "quantize_dequantize")

    def _rows(self, x: Any, packed: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Part, ...]:
        """The first one and the last one."""
        found = []
        for here, piece in data.ends(packed, 1):
            given = (piece,) if self.op == "dequantize" else (x[here], *args[1:])
            found.append(Part(given, options, partial(_cut, here)))
        return tuple(found)


@dataclass(frozen=True)
class Cast:
    """See `pipeline.bench.op.Suite`: float32 to bfloat16.

    Attributes:
        size: [rows, n].
    """

    size: tuple[int, ...]

    def __post_init__(self) -> None:
        data.sizes("bench.matrix", self.size, 2)

    @property
    def nbytes(self) -> int:
        return 8 * prod(self.size)

    def cases(self) -> Iterator[Case]:
        x = data.values(self.size)
        part = Part((x[:1], "BF16"), {}, partial(_cut, slice(0, 1)))
        name = f"f32 → bf16 [{self.size[0]}, {self.size[1]}]"
        yield Case("cast", name, (x, "BF16"), {}, 0.0, 1.5 * x.nbytes, (part,), host=True)


def _whole(y: Any) -> Any:
    return y


def _cut(here: slice, y: Any) -> Any:
    return cut(y, (here,)) if isinstance(y, QTensor) else y[here]

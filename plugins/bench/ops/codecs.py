"""quantize, dequantize, quantize_dequantize, gptq and cast: what conversion and training with rounding do."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final, Literal

import numpy as np

from pipeline.bench.op import Case, Part
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.testing.memory import cut
from plugins.bench.ops import data
from plugins.kernels.gptq import feedback

# As conf/calibrate has them.
SEARCH: Final = {"search": "mse", "search_grid": (0.75, 0.8, 0.84, 0.88, 0.91, 0.94, 0.97, 1.03, 1.06)}


@dataclass(frozen=True)
class Codec:
    """See `pipeline.bench.op.Suite`.

    Attributes:
        op: which of them.
        size: [rows, n] of the values, bfloat16 from N(0, 1).
        formats: that they are coded in.
        searched: those whose scales are searched for as well, as `calibrate=imatrix` does; of `quantize`.
    """

    op: Literal["quantize", "dequantize", "quantize_dequantize"]
    size: tuple[int, ...]
    formats: tuple[str, ...]
    searched: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        data.check("bench.packed", (*self.formats, *self.searched), plain=False)
        data.sizes("bench.matrix", self.size, 2)

    @property
    def nbytes(self) -> int:
        return 8 * prod(self.size)

    def cases(self) -> Iterator[Case]:
        x = data.values(self.size, data.PLAIN["bf16"])
        for name, search in [*((n, {}) for n in self.formats), *((n, SEARCH) for n in self.searched)]:
            scheme, recipe = data.FORMATS[name][0], {**data.FORMATS[name][1], **search}
            packed = Kernel("quantize", ("native", "numpy", "reference"))(x, scheme, **recipe)
            nbytes = x.nbytes + (x.nbytes if self.op == "quantize_dequantize" else packed.nbytes)
            where = f"{name} [{self.size[0]}, {self.size[1]}]{', searched' if search else ''}"
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
class Gptq:
    """See `pipeline.bench.op.Suite`: columns in order of their inputs, scales searched for, as `calibrate=gptq` does.

    Attributes:
        size: [rows, n] of the weights, float32 from N(0, 1).
        formats: that they are coded in.
    """

    size: tuple[int, ...]
    formats: tuple[str, ...]

    def __post_init__(self) -> None:
        data.check("bench.packed", self.formats, plain=False)
        data.sizes("bench.matrix", self.size, 2)

    @property
    def nbytes(self) -> int:
        n = self.size[1]
        return feedback.scratch(self.size, n) + 5 * 8 * n * n  # inputs twice, XᵀX, its factor

    def cases(self) -> Iterator[Case]:
        rows, n = self.size
        x = data.values(self.size)
        inputs = data.values((2 * n, n), seed=1) * np.exp(data.values((n,), seed=2))
        hessian = inputs.T @ inputs / np.float32(2 * n)
        order = feedback.order_of(hessian)
        factor = np.ascontiguousarray(feedback.factor(hessian, 0.01, order))
        for name in self.formats:
            scheme, recipe = data.FORMATS[name]
            options = {**recipe, **SEARCH, "order": order}
            if scheme.element.startswith("int"):
                options["scale_rule"] = "half_range"
            ends = (slice(0, 1), slice(rows - 1, rows))  # each row is rounded without the others
            parts = tuple(Part((x[row], factor, scheme), options, partial(_cut, row), "numpy") for row in ends)
            flops, nbytes = float(rows * n * n), x.nbytes + factor.nbytes
            yield Case("gptq", f"{name} [{rows}, {n}]", (x, factor, scheme), options, flops, nbytes, parts, host=True)


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

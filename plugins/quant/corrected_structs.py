"""GPTQ of ggml's structs: their own search finds scales and minima, and then columns make good what others lost.

The search weighs squared errors by what they add to the loss (`plugins.kernels.gptq`), in place of an importance; its
scales stay, and its codes are made anew, a column after the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import STRUCTS
from plugins.facts.ggml_blocks import DECODERS
from plugins.kernels.codecs.ggml_bytes import with_codes
from plugins.kernels.codecs.superblocks import LAYOUTS, nearest
from plugins.kernels.gptq import feedback
from plugins.quant.structs import Structs


@dataclass(frozen=True)
class CorrectedStructs(Structs):
    """A method whose columns make good what earlier ones lost.

    Attributes:
        damping, act_order: see `plugins.quant.gptq.Corrected`.
    """

    damping: float = 0.01
    act_order: bool = True

    needs_statistics: ClassVar[str] = "hessian"

    @classmethod
    def of(cls, method: Structs, damping: float, act_order: bool) -> "CorrectedStructs":
        return cls(**{f.name: getattr(method, f.name) for f in fields(Structs)}, damping=damping, act_order=act_order)

    @cached_property
    def steps(self) -> Mapping[str, Structs]:
        """See `pipeline.method.MethodHooks`: ggml's search that weighs by values alone stands for rounding."""
        return {"nearest": Structs(**{f.name: getattr(self, f.name) for f in fields(Structs)}), "gptq": self}

    def scratch(self, shape: tuple[int, ...]) -> int:
        """See `pipeline.method.MethodHooks`."""
        return feedback.scratch(shape, self.scheme.block_elems)

    def encode(self, x: Any, *, statistics: Any = None, **more: Any) -> QTensor:
        """See `Structs.encode`.

        Args:
            x: whole rows.
            statistics: the `pipeline.calibration.LinearStatistics` of `x`, with Hessians; None: nothing is known.
        """
        if statistics is None:
            return super().encode(x, **more)
        codes = np.empty(self.scheme.components(x.shape)["codes"], np.uint8)
        for lead in np.ndindex(*x.shape[:-2]):
            codes[lead] = self._corrected(np.asarray(x[lead], np.float32), statistics.hessian(*lead))
        return QTensor(codes, scheme=self.scheme)

    def _corrected(self, matrix: Any, hessian: Any) -> Any:
        """Blocks of `matrix` [out, in] as bytes [out, n]."""
        kind, (size, nbytes) = self.kind.upper(), STRUCTS[self.kind]
        (rows, n), layout = matrix.shape, LAYOUTS[kind]
        group = layout.group
        blocks = np.empty((n // size, rows, nbytes), np.uint8)
        units, lesses = np.empty((n // group, rows), np.float32), np.zeros((n // group, rows), np.float32)
        codes = np.empty((n, rows), np.int8)

        def find_scales(block: int, columns: Any, weights: Any) -> None:
            blocks[block] = super(CorrectedStructs, self).encode(columns, importance=weights.astype(np.float32)).codes
            _, unit, less = DECODERS[kind](blocks[block])
            groups = slice(block * size // group, (block + 1) * size // group)
            units[groups] = unit.T
            if less is not None:
                lesses[groups] = less.T

        def rounded(column: int, values: Any) -> Any:
            at = column // group
            codes[column], found = nearest(layout, values, units[at], lesses[at])
            return found

        order = feedback.order_of(hessian) if self.act_order else None
        upper = feedback.factor(hessian, self.damping, order)
        blockwise, columnwise = feedback.by_block(find_scales, size), feedback.by_column(rounded)
        feedback.correct(matrix, upper, size, blockwise, columnwise, order=order)
        made = codes.reshape(-1, size, rows).swapaxes(1, 2)
        return np.stack([with_codes(kind, b, c) for b, c in zip(blocks, made, strict=True)], axis=1).reshape(rows, -1)

"""GPTQ: what rounding one column loses is made good by the columns that are not rounded yet (Frantar et al. 2022).

`plugins.quant.feedback` has the arithmetic. The rounding under a block's scale is that of the scheme's own codec, so
any scheme of blocks in a row will do, and the structs of ggml (`plugins.quant.corrected_structs`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from pipeline.errors import ConfigError
from pipeline.ops import Call
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from plugins.kernels.codecs import bits
from plugins.kernels.codecs.elements import element
from plugins.kernels.codecs.rounding import encode
from plugins.kernels.quantize.numpy import empty, refuse_unstorable
from plugins.kernels.quantize.numpy.scale import Found, block_scales, decoded, quotients
from plugins.kernels.quantize.recipe import Recipe
from plugins.quant import feedback
from plugins.quant.blockwise import Blockwise, matrix_scale, searching
from plugins.quant.corrected_structs import CorrectedStructs
from plugins.quant.structs import Structs


@dataclass(frozen=True)
class Corrected(Blockwise):
    """A method whose columns make good what earlier ones lost.

    Attributes:
        damping: of the mean of H's diagonal, what is added to that.
        act_order: columns of the largest inputs first, under scales of the weights as they were.
    """

    damping: float = 0.01
    act_order: bool = True

    needs_statistics: ClassVar[str] = "hessian"

    @cached_property
    def steps(self) -> Mapping[str, Blockwise]:
        """See `pipeline.method.MethodHooks`."""
        return {**super().steps, "gptq": self}

    def encode(
        self, x: Any, *, statistics: Any = None, measure: bool = False, observed: Any = None, **more: Any
    ) -> Any:
        """See `Blockwise.encode`.

        Args:
            x: whole rows.
            statistics: the `pipeline.calibration.LinearStatistics` of `x`, with Hessians.
        """
        if statistics is None:
            return super().encode(x, measure=measure, observed=observed, **more)
        q = empty(x.shape, self.scheme)
        for lead in np.ndindex(*x.shape[:-2]):
            second = matrix_scale(x, lead, self.scheme, observed)
            if q.second is not None:
                q.second[lead] = second
            part = corrected(
                np.asarray(x[lead], np.float32), statistics.hessian(*lead), self.scheme, self.recipe, second,
                damping=self.damping, act_order=self.act_order,
            )  # fmt: skip
            q.codes[lead], q.scales[lead] = part.codes, part.scales
            if q.zeros is not None:
                q.zeros[lead] = part.zeros
        return q

    def scratch(self, shape: tuple[int, ...]) -> int:
        """See `pipeline.method.MethodHooks`."""
        return feedback.scratch(shape)

    def calls(self, name: str, spec: TensorSpec) -> Iterator[Call]:
        """As of `Blockwise`, but codes are made here and by no backend of `quantize`."""
        return (call for call in super().calls(name, spec) if call.kernel is not self.quantize)


def corrected(
    matrix: Any, hessian: Any, scheme: Scheme, recipe: Recipe, second: Any, *, damping: float, act_order: bool
) -> QTensor:
    """Codes of `matrix` [out, in], float32.

    Args:
        hessian: [in, in].
        second: the stored second-level scale, or None.
        damping, act_order: see `Corrected`.
    """
    rows, n = matrix.shape
    size, e = scheme.block_elems or n, element(scheme.element)
    q, codes = empty(matrix.shape, scheme), np.empty((n, rows), np.uint8)
    blocks = dict[int, Found]()

    def begin(block: int, columns: Any, weights: Any) -> None:
        values = np.ascontiguousarray(columns, np.float32).reshape(rows, 1, 1, size)
        ends = values.min(axis=(1, 3), keepdims=True), values.max(axis=(1, 3), keepdims=True)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            found = block_scales(values, ends, scheme, recipe, second, weights.reshape(1, 1, 1, size))
        refuse_unstorable(found, np.maximum(*map(np.abs, ends)), scheme)
        q.scales[:, block] = found.stored[:, 0, 0, 0]
        if q.zeros is not None:
            q.zeros[:, block] = found.zeros[:, 0, 0, 0]
        blocks[block] = found

    def rounded(column: int, values: Any) -> Any:
        found = blocks[column // size]
        with np.errstate(invalid="ignore", over="ignore", divide="ignore", under="ignore"):
            v = quotients(values.reshape(rows, 1, 1, 1), found, scheme, recipe)
            code = encode(e, v, recipe.ties, recipe.zero, recipe.is_narrow)
            y = decoded(code, found.total, found.zeros, scheme)
        codes[column] = code.reshape(rows)
        return y.reshape(rows)

    feedback.correct(matrix, hessian, size, begin, rounded, damping=damping, act_order=act_order)
    q.codes[...] = bits.pack(codes.T, e.bits)
    return q


@dataclass(frozen=True)
class Gptq:
    """See `pipeline.calibration.Calibrator`.

    Attributes:
        damping, act_order: see `Corrected`.
        grid: factors of real scales that are tried beside 1, by what rounding then loses. Symmetric integers then use
            all their codes (`half_range`). (): scales are as of a method without calibration. So they are, too, where
            the method searches by itself, or does `like` a library. Structs of ggml have a search of their own.
        steps: neighbours of a power of two that are tried, to each side.
    """

    damping: float = 0.01
    act_order: bool = True
    grid: tuple[float, ...] = ()
    steps: int = 1

    needs_hessian: ClassVar[bool] = True

    def calibrated(self, method: Any) -> Corrected | CorrectedStructs:
        """
        Raises:
            ConfigError: the method has no blocks in a row, or rounds otherwise than to the nearest.
        """
        if type(method) is Structs:  # which searches anyway
            return CorrectedStructs.of(method, self.damping, self.act_order)
        if type(method) is not Blockwise:
            raise ConfigError(f"calibrate=gptq: {type(method).__name__} rounds in no blocks")
        s = method.scheme
        if s.block_rows != 1 or s.second not in (None, "f32", "inverse_f32"):
            raise ConfigError("calibrate=gptq: is for blocks in one row, with one more scale a matrix at most")
        if method.stochastic or method.nonfinite != "error" or method.zero == "minus":
            raise ConfigError("calibrate=gptq: rounds finite values to the nearest, and nothing at random")
        if self.grid and method.search == "none" and method.like is None:
            method = searching(method, self.grid, self.steps)
        given = {f.name: getattr(method, f.name) for f in fields(Blockwise)}
        return Corrected(**given, damping=self.damping, act_order=self.act_order)

"""Scales by outputs: of each block the scale, of a few near the usual one, under which outputs lose least.

AWQ clips weights so, each block as if all others were exact. Inputs go together, so what one block loses others make
worse or better: here each is looked at beside what the others of its row lose. The arithmetic is that of
`plugins.kernels.quantize_by_outputs`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from pipeline.ops import Call, Kernel
from pipeline.tensors.spec import TensorSpec
from plugins.kernels.quantize.numpy import empty
from plugins.kernels.quantize_by_outputs import search
from plugins.quant.blockwise import Blockwise, matrix_scale, searching
from plugins.quant.imatrix import Imatrix, Weighted
from plugins.quant.structs import WeightedStructs


@dataclass(frozen=True)
class ByOutputs(Weighted):
    """A method whose search looks at what a matrix gives; without XᵀX it weighs columns, as `imatrix`.

    Attributes:
        kernel: the op that does it.
    """

    kernel: Kernel = field(default_factory=partial(Kernel, "quantize_by_outputs", ("numpy",)))

    needs_statistics: ClassVar[str] = "hessian"

    @cached_property
    def steps(self) -> Mapping[str, Blockwise]:
        """See `pipeline.method.MethodHooks`."""
        return {"nearest": super().steps["nearest"], "clip": self}

    def encode(
        self, x: Any, *, statistics: Any = None, measure: bool = False, observed: Any = None, **more: Any
    ) -> Any:
        """See `Blockwise.encode`.

        Args:
            x: whole matrices.
            statistics: the `pipeline.calibration.LinearStatistics` of `x`; None: all columns count the same.
        """
        # What is not finite is refused there.
        if statistics is None or statistics.hessian is None or not np.isfinite(x).all():
            return super().encode(x, statistics=statistics, measure=measure, observed=observed, **more)
        q, options = empty(x.shape, self.scheme), {**self._options, "nonfinite": "error"}  # of which there is nothing
        for lead in np.ndindex(*x.shape[:-2]):
            second = matrix_scale(x, lead, self.scheme, observed)
            if q.second is not None:
                q.second[lead] = second
            hessian = np.asarray(statistics.hessian(*lead), np.float32)
            part = self.kernel(np.asarray(x[lead], np.float32), hessian, self.scheme, second=second, **options)
            q.codes[lead], q.scales[lead] = part.codes, part.scales
            if q.zeros is not None:
                q.zeros[lead] = part.zeros
        return q

    def scratch(self, shape: tuple[int, ...]) -> int:
        """See `pipeline.method.MethodHooks`."""
        return search.scratch(shape, self.scheme, self.recipe)

    def calls(self, name: str, spec: TensorSpec) -> Iterator[Call]:
        """As of `Blockwise`, but codes are made by `quantize_by_outputs`."""
        for call in super().calls(name, spec):
            yield call if call.kernel is not self.quantize else Call(self.kernel, name, call.given)


@dataclass(frozen=True)
class Clip(Imatrix):
    """As `Imatrix`, but of outputs. Symmetric integers then use all their codes (`half_range`), where nothing says how
    scales are made.

    Attributes:
        kernel: see `ByOutputs`.
    """

    kernel: Kernel = field(default_factory=partial(Kernel, "quantize_by_outputs", ("numpy",)))

    needs_hessian: ClassVar[bool] = True
    called: ClassVar[str] = "awq"

    def calibrated(self, method: Any) -> Weighted | WeightedStructs:
        """
        Raises:
            ConfigError: the method cannot search for scales; says why.
        """
        weighted = super().calibrated(method)
        if isinstance(weighted, WeightedStructs):
            return weighted
        s = method.scheme
        if s.block_rows != 1 or s.second not in (None, "f32", "inverse_f32") or method.recipe.zero == "minus":
            return weighted
        found = searching(method, self.grid, self.steps)
        return ByOutputs(**{f.name: getattr(found, f.name) for f in fields(Blockwise)}, kernel=self.kernel)

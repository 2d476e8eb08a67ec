"""GPTQ: what rounding one column loses is made good by the columns that are not rounded yet (Frantar et al. 2022).

`plugins.kernels.gptq` has the arithmetic. The rounding under a block's scale is that of the scheme's own codec, so
any scheme of blocks in a row will do, and the structs of ggml (`plugins.quant.corrected_structs`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from math import inf
from typing import Any, ClassVar

import numpy as np

from pipeline.errors import ConfigError
from pipeline.ops import Call, Kernel
from pipeline.tensors.spec import TensorSpec
from plugins.kernels.gptq import feedback
from plugins.kernels.quantize.numpy import empty
from plugins.kernels.quantize.reach import refuse_infinities
from plugins.quant.blockwise import Blockwise, matrix_scale, searching
from plugins.quant.corrected_structs import CorrectedStructs
from plugins.quant.structs import Structs


@dataclass(frozen=True)
class Corrected(Blockwise):
    """A method whose columns make good what earlier ones lost.

    Attributes:
        damping: of the mean of H's diagonal, what is added to that.
        act_order: columns of the largest inputs first, under scales of the weights as they were.
        kernel: the op that does it.
    """

    damping: float = 0.01
    act_order: bool = True
    kernel: Kernel = field(default_factory=partial(Kernel, "gptq", ("numpy",)))

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
        if statistics is None or not np.isfinite(x).all():  # which is refused there
            return super().encode(x, measure=measure, observed=observed, **more)
        q = empty(x.shape, self.scheme)
        for lead in np.ndindex(*x.shape[:-2]):
            second = matrix_scale(x, lead, self.scheme, observed)
            if q.second is not None:
                q.second[lead] = second
            hessian = statistics.hessian(*lead)
            order = feedback.order_of(hessian) if self.act_order else None
            part = self.kernel(
                np.ascontiguousarray(x[lead], np.float32), feedback.factor(hessian, self.damping, order), self.scheme,
                order=order, second=second, **self._options,
            )  # fmt: skip
            q.codes[lead], q.scales[lead] = part.codes, part.scales
            if q.zeros is not None:
                q.zeros[lead] = part.zeros
        if self.recipe.overflow == "error":
            refuse_infinities(x, q)
        return q

    def scratch(self, shape: tuple[int, ...]) -> int:
        """See `pipeline.method.MethodHooks`."""
        return feedback.scratch(shape, self.scheme.block_elems or shape[-1])

    def calls(self, name: str, spec: TensorSpec) -> Iterator[Call]:
        """As of `Blockwise`, but codes are made by `gptq`."""
        for call in super().calls(name, spec):
            yield call if call.kernel is not self.quantize else Call(self.kernel, name, call.given)


@dataclass(frozen=True)
class Gptq:
    """See `pipeline.calibration.Calibrator`.

    Attributes:
        damping, act_order: see `Corrected`.
        grid: factors of real scales that are tried beside 1, by what rounding then loses. Symmetric integers then use
            all their codes (`half_range`). (): scales are as of a method without calibration. So they are, too, where
            the method searches by itself, or does `like` a library. Structs of ggml have a search of their own.
        steps: neighbours of a power of two that are tried, to each side.
        kernel: see `Corrected`.
    """

    damping: float = 0.01
    act_order: bool = True
    grid: tuple[float, ...] = ()
    steps: int = 1
    kernel: Kernel = field(default_factory=partial(Kernel, "gptq", ("numpy",)))

    needs_hessian: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.damping < inf:
            text = "of the mean of the diagonal, 0 or more, as 0.01 is"
            raise ConfigError(f"calibrate.method.damping={self.damping}: a share is needed, {text}")

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
        recipe = method.recipe  # with what `like` says
        if recipe.stochastic or recipe.nonfinite != "error" or recipe.zero == "minus":
            raise ConfigError("calibrate=gptq: rounds finite values to the nearest, and nothing at random")
        if self.grid and method.like is None:
            method = searching(method, self.grid, self.steps)
        given = {f.name: getattr(method, f.name) for f in fields(Blockwise)}
        return Corrected(**given, damping=self.damping, act_order=self.act_order, kernel=self.kernel)

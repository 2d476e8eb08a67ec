"""Importance: scales searched for so that columns count as much as the model multiplies by them.

For each block the scale, of a few near the usual one, with the least Σ E[x²]·(w-ŵ)²: the expected square of what the
block adds to an output, where columns are taken to be independent. llama.cpp calls E[x²] the importance matrix.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

from pipeline.errors import ConfigError
from plugins.quant.blockwise import Blockwise
from plugins.quant.structs import Structs, WeightedStructs


@dataclass(frozen=True)
class Weighted(Blockwise):
    """A method whose search weighs columns by what is known of them."""

    needs_statistics: ClassVar[str] = "mean_square"

    @cached_property
    def steps(self) -> Mapping[str, Blockwise]:
        """See `pipeline.method.MethodHooks`: a search that does not weigh is no step on the way."""
        return {"nearest": super().steps["nearest"], "imatrix": self}

    def encode(self, x: Any, *, statistics: Any = None, **more: Any) -> Any:
        """See `Blockwise.encode`.

        Args:
            statistics: the `pipeline.calibration.LinearStatistics` of `x`; None: all columns count the same.
        """
        return super().encode(x, importance=None if statistics is None else statistics.mean_square, **more)


@dataclass(frozen=True)
class Imatrix:
    """See `pipeline.calibration.Calibrator`.

    Attributes:
        grid: factors of real scales that are tried beside 1.
        steps: neighbours of a power of two that are tried, to each side. A method that searches by itself tries its
            own.
    """

    grid: tuple[float, ...]
    steps: int = 1

    needs_hessian: ClassVar[bool] = False
    called: ClassVar[str] = "imatrix"  # option of `calibrate` that it is

    def calibrated(self, method: Any) -> Weighted | WeightedStructs:
        """
        Raises:
            ConfigError: the method cannot search for scales; says why.
        """
        if type(method) is Structs:  # which searches anyway
            return WeightedStructs.of(method)
        if type(method) is not Blockwise:
            raise ConfigError(f"calibrate={self.called}: {type(method).__name__} searches for no scale of blocks")
        given: dict[str, Any] = (
            {} if method.search != "none" else {"search_grid": self.grid, "search_steps": self.steps}
        )
        try:
            searching = replace(method, search="mse", **given)
        except ConfigError as why:
            raise ConfigError(f"calibrate={self.called} searches for scales, as search=mse does: {why}") from None
        return Weighted(**{f.name: getattr(searching, f.name) for f in fields(Blockwise)})

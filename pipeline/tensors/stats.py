"""How far a coded tensor is from the original, and what outputs lose by that, in sums that add up over slices."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ErrorStats:
    """Sums over `count` values x and their decoded counterparts y, in float64.

    Attributes:
        count: number of values.
        max_abs: max |x - y|.
        sq_error: sum of (x - y)².
        sq_signal: sum of x².
    """

    count: int = 0
    max_abs: float = 0.0
    sq_error: float = 0.0
    sq_signal: float = 0.0

    def __add__(self, other: "ErrorStats") -> "ErrorStats":
        return ErrorStats(
            self.count + other.count,
            math.nan if math.isnan(self.max_abs + other.max_abs) else max(self.max_abs, other.max_abs),
            self.sq_error + other.sq_error,
            self.sq_signal + other.sq_signal,
        )

    @property
    def rmse(self) -> float:
        return math.sqrt(self.sq_error / self.count) if self.count else 0.0

    @property
    def sqnr_db(self) -> float:
        """10·log10(signal / error); inf when exact, -inf when the error is not finite."""
        if self.sq_error == 0:
            return math.inf
        ratio = self.sq_signal / self.sq_error if math.isfinite(self.sq_error) else 0.0
        return 10 * math.log10(ratio) if ratio else -math.inf

    def to_json(self) -> list[float]:
        return [self.count, self.max_abs, self.sq_error, self.sq_signal]

    @classmethod
    def from_json(cls, fields: list[Any]) -> "ErrorStats":
        return cls(int(fields[0]), *map(float, fields[1:]))

    @classmethod
    def between(cls, x: Any, y: Any) -> "ErrorStats":
        """Stats of float32 arrays `x` (original) and `y` (decoded) of one shape; where both are NaN nothing is lost."""
        import numpy as np

        with np.errstate(invalid="ignore", over="ignore"):
            diff = (x - y).ravel()
        flat = x.ravel()
        if not np.isfinite(diff).all():
            other = y.ravel()
            diff[(flat == other) | (np.isnan(flat) & np.isnan(other))] = 0
        # Squares in float64: in float32 those of values past 1e19 overflow and those below 1e-23 vanish.
        return cls(
            diff.size,
            float(np.max(np.abs(diff), initial=0.0)),
            float(np.sum(np.square(diff, dtype=np.float64))),
            float(np.sum(np.square(flat, dtype=np.float64))),
        )


@dataclass(frozen=True, slots=True)
class Gain:
    """What the outputs Wx of one tensor lose when W is rounded, step by step of how it is quantized.

    Attributes:
        by: what is known of the inputs x: their `products` with each other, Σ‖(Q-W)x‖² exactly; their mean `squares`,
            as if inputs did not go together; or nothing, so that `weights` count alone.
        signal: Σ‖Wx‖², float64, over all inputs that were seen.
        lost: step → Σ‖(Q-W)x‖², in the order of the steps; the first is rounding to the nearest.
    """

    by: str = ""
    signal: float = 0.0
    lost: Mapping[str, float] = field(default_factory=dict)

    def __add__(self, other: "Gain") -> "Gain":
        steps = dict.fromkeys((*self.lost, *other.lost))
        lost = {step: self.lost.get(step, 0.0) + other.lost.get(step, 0.0) for step in steps}
        return Gain(self.by or other.by, self.signal + other.signal, lost)

    @property
    def shares(self) -> dict[str, float]:
        """Step → what is lost as a share of the signal; 0 where there is none."""
        return {step: lost / self.signal if self.signal else 0.0 for step, lost in self.lost.items()}

    def to_json(self) -> list[object]:
        return [self.by, self.signal, dict(self.lost)]

"""From values to places: linear axes and those by magnitudes, with ticks at round numbers."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pipeline.figures import Figure
from pipeline.reporting.plots import MAGNITUDES

LEAST, MOST = -744.0, 709.0  # whose exponentials are numbers, and not 0
NOTHING = 1e9  # times smaller than the largest is what rounding leaves
STEPS = (1, 2, 2.5, 5, 10)
BINARY = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))  # of an axis of bytes


@dataclass(frozen=True)
class Scale:
    """Attributes:
    low, high: values at its ends; of one by magnitudes both positive.
    start, end: where these are, in units of the drawing.
    log: whether it is by magnitudes.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self, most: int = 5, unit: str = "") -> list[float]:
        """Round values within it, at most so many or a few more; bytes are round in the unit that they are shown in."""
        if (each := unit_of(unit, (self.high,))[1]) != 1:
            return [v * each for v in replace(self, low=self.low / each, high=self.high / each).ticks(most)]
        if self.log and self.high / self.low >= 10:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            every = max(1, -(-(last - first + 1) // most))
            found = [10.0**n for n in range(first, last + 1, every)]
            finer = [m * 10.0**n for n in range(first - 1, last + 1) for m in (1, 2, 5)]
            return found if len(found) >= 3 else [v for v in finer if self.low <= v <= self.high]
        span = self.high - self.low
        raw = span / max(1, most)
        magnitude = 10.0 ** math.floor(math.log10(raw))
        step = next(s * magnitude for s in STEPS if s * magnitude >= raw * (1 - 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [n * step for n in range(first, last + 1)]


def scale(values: Iterable[float], start: float, end: float, *, log: bool | None = None, pad: float = 0.05) -> Scale:
    """An axis on which all of `values` lie.

    Args:
        log: by magnitudes; None: where they have several, and are positive, and none is as good as nothing.
        pad: what is free at either end, as a share.
    """
    found = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(found), max(found)
    log = (low > 0 and MAGNITUDES < high / low < NOTHING) if log is None else log and low > 0
    if low == high:
        away = abs(low) * 0.1 or 1.0
        low, high = low - away, high + away
    elif log:
        away = (math.log(high) - math.log(low)) * pad
        low, high = (math.exp(max(LEAST, min(MOST, v))) for v in (math.log(low) - away, math.log(high) + away))
    else:
        away = (high - low) * pad
        low, high = low - away, high + away
    return Scale(low, high, start, end, log)


def finite(value: Figure | None) -> Figure | None:
    """What has a place on an axis."""
    return value if value is not None and math.isfinite(value.value) else None


def unit_of(unit: str, values: Iterable[float]) -> tuple[str, int]:
    """What an axis of `values` says that it is of, and how much of `unit` that is: of bytes the largest that fits."""
    largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    return next((one for one in BINARY if one[1] <= largest), ("B", 1)) if unit == "B" else (unit, 1)


def label(value: float, ticks: Sequence[float] = ()) -> str:
    """A tick's number, short: as exact as its neighbours need."""
    if value == 0:
        return "0"
    size = abs(value)
    apart = min((abs(a - b) for a in ticks for b in ticks if a != b), default=size)
    small = max(map(abs, ticks), default=size) < 1e-3 or size < apart / 2  # of magnitudes, each by itself
    if size >= 1e6 or (size < 1e-3 and small):
        digits = max(1, min(4, 1 + math.floor(math.log10(size)) - math.floor(math.log10(apart))))
        mantissa, exponent = f"{value:.{digits}e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    digits = max(0, min(6, 1 - math.floor(math.log10(apart))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text

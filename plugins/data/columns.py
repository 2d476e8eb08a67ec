"""Columns of a table: what makes a number of a field, and how many numbers a model is given of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.errors import did_you_mean

MOST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Number:
    """A number, or its natural logarithm."""

    log: bool = False

    def read(self, text: str) -> float:
        """Raises ValueError: it is no finite number, too large for fp32, or has no logarithm; says what it is."""
        try:
            value = float(text)
        except ValueError:
            hint = "; data.ordinal and data.one_hot are for what is no number" if text else ""
            raise ValueError(f"{text!r:.60} is no number{hint}") from None
        if not math.isfinite(value):
            raise ValueError(f"{text} is no finite number")
        if self.log and value <= 0:
            raise ValueError(f"{text} has no logarithm")
        value = math.log(value) if self.log else value
        if abs(value) > MOST:
            raise ValueError(f"{text} is too large for fp32, which has numbers up to {MOST:.4g}")
        return value


@dataclass(frozen=True)
class Ordinal:
    """One of some values, by its place among them."""

    values: Sequence[str]
    option: str

    def read(self, text: str) -> float:
        """Raises ValueError: it is another one."""
        try:
            return float(self.values.index(text))
        except ValueError:
            known = did_you_mean(text, self.values)
            raise ValueError(f"{text!r:.60} is not one of the values in {self.option}{known}") from None


@dataclass(frozen=True)
class OneHot:
    """One of the values that the files have, by the order in which they were found."""

    most = 1024  # more are taken for a column that has another value in every row
    values: dict[str, int] = field(default_factory=dict)

    def read(self, text: str) -> float:
        """Raises ValueError: there are too many."""
        if text not in self.values and len(self.values) == self.most:
            raise ValueError(f"data.one_hot is for columns of up to {self.most:,} values, and {text!r:.60} is one more")
        return float(self.values.setdefault(text, len(self.values)))


Column = Number | Ordinal | OneHot


@dataclass(frozen=True)
class Prepare:
    """Stored numbers as a model takes them.

    Attributes:
        mean, deviation: float32 [columns].
        places: column of several numbers → for each of its values, in the order in which it was found, its place.
    """

    mean: np.ndarray
    deviation: np.ndarray
    places: Mapping[int, np.ndarray]

    @property
    def width(self) -> int:
        return len(self.mean) - len(self.places) + sum(map(len, self.places.values()))

    def __call__(self, stored: np.ndarray) -> np.ndarray:
        """[rows, columns] → float32 [rows, width]."""
        scaled = (stored - self.mean) / self.deviation
        parts = []
        for i in range(stored.shape[1]):
            if i in self.places:
                places = self.places[i]
                parts.append(np.eye(len(places), dtype=np.float32)[places[stored[:, i].astype(np.int64)]])
            else:
                parts.append(scaled[:, i : i + 1])
        return np.concatenate(parts, axis=1).astype(np.float32)


def in_order(values: Sequence[str]) -> np.ndarray:
    """Of values in the order in which they were found, the place of each in the order of the alphabet."""
    return np.argsort(np.argsort(np.array(values, dtype=object), kind="stable"), kind="stable")


def statistics(values: np.ndarray, rows: np.ndarray, block: int = 1 << 16) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each column over some rows, float32 [columns]; where all are equal, the deviation is 1.

    Args:
        values: [rows, columns], perhaps in a file.
        rows: which count.
    """
    count, mean, squares = 0, np.zeros(values.shape[1]), np.zeros(values.shape[1])
    for begin in range(0, len(rows), block):  # Chan, Golub and LeVeque (1979): sums of squares of blocks add up so
        some = values[rows[begin : begin + block]].astype(np.float64)
        middle, total = some.mean(axis=0), count + len(some)
        squares += ((some - middle) ** 2).sum(axis=0) + (middle - mean) ** 2 * count * len(some) / total
        mean += (middle - mean) * len(some) / total
        count = total
    deviation = np.sqrt(squares / max(1, count))
    return mean.astype(np.float32), np.where(deviation > 0, deviation, 1).astype(np.float32)

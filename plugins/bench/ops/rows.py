"""softmax, rms_norm, rope and embed: what goes over rows once."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np

from pipeline.bench.op import Case, Part
from plugins.bench.ops import data

FEW = 2  # rows that the definition computes too
EPS = 1e-5
THETA = 150_000.0
IDS = 64


@dataclass(frozen=True)
class Rows:
    """See `pipeline.bench.op.Suite`.

    Attributes:
        rows, width: of x.
    """

    rows: tuple[int, ...]
    width: int

    WIDTH: ClassVar[str]  # setting that the width is

    def __post_init__(self) -> None:
        data.sizes("bench.tokens", self.rows)
        data.sizes(self.WIDTH, (self.width,))

    @property
    def nbytes(self) -> int:
        return 24 * max(self.rows) * self.width  # twice in, once out, and as much again at work


@dataclass(frozen=True)
class SoftMax(Rows):
    """Float32, as wide as a vocabulary."""

    WIDTH = "bench.vocabulary"

    def cases(self) -> Iterator[Case]:
        for rows in self.rows:
            x = data.values((rows, self.width))
            yield _of_rows("softmax", f"f32 [{rows}, {self.width}]", x, (), {}, 5.0)


@dataclass(frozen=True)
class RmsNorm(Rows):
    """bfloat16 and float32, as wide as a token."""

    WIDTH = "bench.width"

    def cases(self) -> Iterator[Case]:
        for rows, (name, dtype) in product(self.rows, data.PLAIN.items()):
            x, weight = data.values((rows, self.width), dtype), data.values((self.width,), dtype, seed=1)
            yield _of_rows("rms_norm", f"{name} [{rows}, {self.width}]", x, (weight,), {"eps": EPS}, 4.0)


def _of_rows(op: str, name: str, x: Any, more: tuple[Any, ...], options: dict[str, Any], each: float) -> Case:
    """Rows that need nothing of each other; `each` operations a value."""
    parts = (Part((x[-FEW:], *more), options, lambda y: y[-FEW:]),)
    return Case(op, name, (x, *more), options, each * x.size, 2 * x.nbytes, parts)


@dataclass(frozen=True)
class Rope:
    """See `pipeline.bench.op.Suite`.

    Attributes:
        rows: tokens.
        heads: of queries, of keys, and the values of each.
    """

    rows: tuple[int, ...]
    heads: tuple[int, ...]

    def __post_init__(self) -> None:
        data.sizes("bench.tokens", self.rows)
        data.sizes("bench.heads", self.heads, 3)

    @property
    def nbytes(self) -> int:
        return 12 * max(self.rows) * self.heads[0] * self.heads[2]

    def cases(self) -> Iterator[Case]:
        many, _, dims = self.heads
        frequencies = (THETA ** (-np.arange(dims // 2) / (dims // 2))).astype(np.float32)
        for rows in self.rows:
            x = data.values((1, rows, many, dims))
            at = np.arange(rows, dtype=np.int32)[None]
            parts = (Part((x[:, -FEW:], at[:, -FEW:], frequencies), {}, lambda y: y[:, -FEW:]),)
            name = f"f32 [{rows}, {many}, {dims}]"
            yield Case("rope", name, (x, at, frequencies), {}, 3.0 * x.size, 2 * x.nbytes, parts)


@dataclass(frozen=True)
class Embed:
    """See `pipeline.bench.op.Suite`: `IDS` rows of a table.

    Attributes:
        vocabulary, width: of the table.
        formats: of it.
    """

    vocabulary: int
    width: int
    formats: tuple[str, ...]

    def __post_init__(self) -> None:
        data.check("bench.formats", self.formats)
        data.sizes("bench.vocabulary", (self.vocabulary, self.width))

    @property
    def nbytes(self) -> int:
        return 8 * self.vocabulary * self.width

    def cases(self) -> Iterator[Case]:
        ids = np.random.default_rng(0).integers(self.vocabulary, size=(1, IDS)).astype(np.int32)
        ids[:, -FEW:] = 0  # the definition decodes all that it is given: it gets the first row
        for name in self.formats:
            w, options = data.weights(name, (self.vocabulary, self.width)), {"dtype": np.float32}
            parts = (Part((ids[:, -FEW:], data.ends(w, 1)[0][1]), options, lambda y: y[:, -FEW:]),)
            nbytes = IDS * (w.nbytes / self.vocabulary + 4 * self.width)
            yield Case("embed", f"{name} [{self.vocabulary}, {self.width}]", (ids, w), options, 0.0, nbytes, parts)

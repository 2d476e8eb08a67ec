"""matmul: rows of x times weights, plain and packed."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from pipeline.bench.op import Case, Part
from pipeline.errors import ConfigError
from plugins.bench.ops import data
from plugins.bench.ops.data import Plain

MOST = 1e9  # GFLOP of a call: what the quickest machine has done in an hour or so


@dataclass(frozen=True)
class MatMul:
    """See `pipeline.bench.op.Suite`.

    Attributes:
        sizes: [out, in] of the weights.
        rows: of x.
        formats: of the weights; of x bfloat16 with such weights, else float32.
        most: GFLOP of a call; what takes more is left out. None: nothing is.
        activations: format of x; None: bfloat16 with such weights, else float32.
    """

    sizes: tuple[tuple[int, ...], ...]
    rows: tuple[int, ...]
    formats: tuple[str, ...]
    most: float | None
    activations: Plain | None = None

    def __post_init__(self) -> None:
        if self.most is not None and not 0 < self.most <= MOST:
            raise ConfigError(f"bench.most={self.most}: more than 0 is allowed, {MOST:,.0f} at most, or null for any")
        data.check("bench.formats", self.formats)
        data.sizes("bench.rows", self.rows)
        data.sizes("bench.sizes", tuple(map(len, self.sizes)))
        for size in self.sizes:
            data.sizes("bench.sizes", size, 2)

    @property
    def nbytes(self) -> int:
        return 2 * 4 * max(map(prod, self.sizes))

    def cases(self) -> Iterator[Case]:
        for (out, n), name in product(self.sizes, self.formats):
            w = None
            for rows in self.rows:
                flops = 2.0 * rows * out * n
                if self.most is not None and flops > 1e9 * self.most:
                    continue
                w = data.weights(name, (out, n)) if w is None else w
                x = data.values((rows, n), data.activations(name, self.activations), seed=1)
                parts = tuple(
                    Part((x, piece), {}, lambda y, here=here: y[:, here])  # type: ignore[misc]
                    for here, piece in data.ends(w)
                )
                nbytes = w.nbytes + x.nbytes + rows * out * x.itemsize
                case = f"{name} [{out}, {n}] × {rows}{data.said(self.activations)}"
                yield Case("matmul", case, (x, w), {}, flops, nbytes, parts)

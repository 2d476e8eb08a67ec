"""What a model's activations were, as methods are told of it: statistics of what each matrix is multiplied by.

A stage gathers them (`stages/calibrate.py`) by running the model as it was on texts; a method says that it wants them
(`pipeline.method.MethodHooks.needs_statistics`), and is given those of the box that it encodes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class LinearStatistics:
    """What the inputs x `[tokens, in]` of one tensor `[..., out, in]` were. Leading dimensions are experts.

    Attributes:
        tokens: how many inputs there were, int64 `[...]`; of a plain matrix a number of no dimensions.
        mean_square: mean of x² of each column, fp32 `[..., in]`, what llama.cpp calls an importance matrix.
        absmax: largest |x| of each column, fp32 `[..., in]`.
        hessian: `hessian(*expert)`: XᵀX / tokens of one matrix, fp32 `[in, in]`, read when asked; None: not kept.
        sample: `sample(*expert)`: some of the inputs of one matrix, evenly spaced, fp32 `[rows, in]`, read when asked;
            None: not kept.
    """

    tokens: Any
    mean_square: Any
    absmax: Any
    hessian: Callable[..., Any] | None = None
    sample: Callable[..., Any] | None = None

    def of(self, lead: tuple[slice, ...], columns: slice) -> "LinearStatistics":
        """Those of a part: some experts, some columns; Hessians, which are of whole matrices, by the part's experts."""
        first = tuple(s.start for s in lead)
        whole, rows = self.hessian, self.sample

        def hessian(*expert: int) -> Any:
            assert whole is not None
            return whole(*(f + e for f, e in zip(first, expert, strict=True)))

        def sample(*expert: int) -> Any:
            assert rows is not None
            return rows(*(f + e for f, e in zip(first, expert, strict=True)))[:, columns]

        return replace(
            self,
            tokens=np.asarray(self.tokens)[lead],
            mean_square=self.mean_square[(*lead, columns)],
            absmax=self.absmax[(*lead, columns)],
            hessian=None if whole is None else hessian,
            sample=None if rows is None else sample,
        )


class Statistics(Protocol):
    """What a stage has found, tensor by tensor. It pickles, as stores do, and reads from disk when asked."""

    def __contains__(self, name: object) -> bool:
        """Whether the model multiplies anything by this tensor, known before anything is read."""
        ...

    def of(self, name: str) -> LinearStatistics | None:
        """Those of a tensor; None: the model multiplies nothing by it, or nothing was kept."""
        ...


class Calibrator(Protocol):
    """A plugin node under `calibrate`: what makes a method one that looks at activations."""

    @property
    def needs_hessian(self) -> bool:
        """Whether XᵀX is to be kept, beside mean squares and largest values."""
        ...

    def calibrated(self, method: Any) -> Any:
        """The method (`pipeline.method.Method`) that makes codes of the same scheme with statistics.

        Raises:
            ConfigError: it does nothing for this scheme; says why.
        """
        ...


@dataclass(frozen=True)
class Multiplied:
    """A matrix that is to be quantized, for whoever scales its columns first.

    Attributes:
        matrix: some of its rows, fp32 `[rows, in]`, which the method takes as a matrix.
        method: the `pipeline.method.Method` that it is to take.
        statistics: of its inputs; of no expert but this one.
        largest: largest |w| of each column, of all rows, fp32 `[in]`.
    """

    matrix: Any
    method: Any
    statistics: LinearStatistics
    largest: Any


@dataclass(frozen=True)
class Smoothing:
    """Factors of channels.

    Attributes:
        factors: what columns are multiplied by and inputs divided by, fp32 `[channels]`, positive.
        loss: what rounding then loses of outputs, as a share of what it would without factors.
        said: what else is to be told of them, JSON-able.
    """

    factors: Any
    loss: float
    said: Mapping[str, Any]


class Reconstructor(Protocol):
    """A plugin node under `calibrate.reconstruct`: trains what a block's weights are rounded to, block after block."""

    @property
    def batch(self) -> int:
        """Rows of the text that an update is made of, of those that are trained on."""
        ...

    @property
    def rows(self) -> int:
        """How many rows of the text a block is trained on, each as often as it comes, for the plan."""
        ...

    def problem(self, scheme: Any) -> str | None:
        """Why tensors of this scheme cannot be trained; None: they can."""
        ...

    def learn(
        self, engine: Any, checkpoint: Any, coded: Any, rows: Sequence[Sequence[int]], batch: int, folder: Path,
        seed: int,
    ) -> None:  # fmt: skip
        """Write what was learned into `folder`, a file `blocks.N.npz` a block: of every tensor that `coded` has packed
        and `checkpoint` has not what `pipeline.learned.arrays_of` says, and `blocks.N/report`, JSON. What an earlier
        call had finished there is not done again."""
        ...


class Smoother(Protocol):
    """A plugin node under `calibrate.smooth`: factors that go from a tensor into those that multiply what it gives."""

    @property
    def rows(self) -> int | None:
        """How many rows of a matrix it looks at; None: all."""
        ...

    @property
    def passes(self) -> int:
        """How often it rounds each of them, for the plan."""
        ...

    def factors(self, consumers: Sequence[Multiplied], channels: Any) -> Smoothing:
        """Of one `pipeline.topology.Channels`, whose quantized `consumers` are those, an expert each."""
        ...

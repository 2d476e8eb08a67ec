"""What the steps of quantizing a tensor gain: after each of them, what is lost of the outputs of texts.

The error of outputs is E‖(Q-W)x‖², by the XᵀX that is there for GPTQ anyway, or by mean squares; no model is run for
it. What a step before rounding gained, as a rotation, is found by rounding the tensor as it was before, and doing to
the rounded one what the step did to all.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.calibration import LinearStatistics
from pipeline.hooks import optional
from pipeline.method import Method, MethodHooks
from pipeline.tensors.folds import Fold
from pipeline.tensors.stats import Gain
from pipeline.tensors.store import TensorStore

NEAREST = "nearest"


@dataclass(frozen=True)
class Past:
    """The tensors that a step before rounding changes, rounded to the nearest before it, and changed then.

    Attributes:
        called: the step.
        names: those that it changes.
        store: has them, as values.
    """

    called: str
    names: frozenset[str]
    store: TensorStore = field(repr=False)


def pasts(folds: Sequence[Fold], rounded: Callable[[TensorStore, frozenset[str]], TensorStore]) -> tuple[Past, ...]:
    """For each of the changes, in the order in which they were made, what rounding before it gives after all of them.

    Args:
        rounded: of a store and names of some of its tensors, the store with these rounded and decoded.
    """
    found = []
    for i, fold in enumerate(folds):
        names = fold.names & fold.before.specs.keys()
        store = rounded(fold.before, names)
        for later in folds[i:]:
            store = later.again(store)
        found.append(Past(fold.called, names, store))
    return tuple(found)


def nearest(method: Method) -> Method:
    """The method that only rounds to the nearest, of one that does more."""
    found: Method = next(iter(optional(method, MethodHooks, "steps").values()), method)
    return found


def gain(steps: Iterable[tuple[str, Any]], values: Any, known: LinearStatistics | None) -> Gain:
    """
    Args:
        steps: name of a step, and what the tensor was after it, decoded, fp32 `[..., out, in]`, in order.
        values: what it is before it is rounded, fp32, of the same shape.
        known: of the inputs of this part of a tensor; with XᵀX only where the part has whole columns.
    """
    leads = [*np.ndindex(*values.shape[:-2])]
    tokens = np.ones(values.shape[:-2]) if known is None else np.asarray(known.tokens, np.float64)
    products = None if known is None else known.hessian
    weighed: dict[tuple[int, ...], Any] = {}
    for lead in leads:
        if known is not None:
            weighed[lead] = known.mean_square[lead] if products is None else np.asarray(products(*lead), np.float32)

    def size(of: Any) -> float:
        """Σ‖Vx‖² over what was seen."""
        return float(sum(tokens[lead] * _square(of[lead], weighed.get(lead)) for lead in leads))

    signal = size(values)
    by = "weights" if known is None else "squares" if products is None else "products"
    return Gain(by, signal, {name: size(after - values) for name, after in steps})


def _square(v: Any, weighed: Any) -> float:
    """tr(VHVᵀ) of a matrix and H, or the diagonal of H, or of H = 1."""
    if weighed is None:
        return float(np.sum(np.square(v, dtype=np.float64)))
    return float(np.sum(v * (v @ weighed if weighed.ndim == 2 else v * weighed), dtype=np.float64))


def scratch_nbytes(shape: tuple[int, ...], *, products: bool) -> int:
    """Memory that a matrix of a tensor takes for that: as values, what is lost of it, and of its outputs; and XᵀX."""
    rows, n = (1, *shape)[-2:]
    return 4 * (3 * rows * n + (n * n if products else 0))

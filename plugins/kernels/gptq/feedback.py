"""Columns that make good what earlier ones lost: the arithmetic of GPTQ, whatever a column is rounded to.

Of a matrix W with inputs of second moments H = E[xxᵀ] columns are rounded in order; the error of each, divided by its
entry in the upper Cholesky factor of H⁻¹, is taken off all later columns (Frantar et al. 2022, algorithm 1). The square
of a column's error counts 1 / that entry², which is what it adds to the loss (theorem 2 of Frantar and Alistarh 2022,
OBC).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.errors import ValueRangeError

LAZY = 128  # columns after which all later ones are brought up to date, by one product of matrices

FindScales = Callable[[int, Any, Any], None]
"""`(block, values [out, k] float32, weights [k] float64)`: finds the scales of the blocks from this one on whose
columns are given, and the squares of whose errors count so much."""
Rounded = Callable[[int, Any], Any]
"""`(column, values [out] float32)`: what these values of a column become, under the scales of its block."""
RoundColumns = Callable[[Any, Any, Any, Any], None]
"""`(columns [k], w [k, out] float64, upper [k, k], errors [k, out])`: rounds columns one after the other, each less
what those before it lost; `errors` becomes what they lose themselves, divided by their entries on the diagonal. `w` may
change."""


def order_of(hessian: Any) -> Any:
    """Columns of the largest inputs first, int64 [in]; the earlier of equals."""
    return np.argsort(-np.diag(hessian), kind="stable")


def factor(hessian: Any, damping: float, order: Any = None) -> Any:
    """The upper Cholesky factor of the inverse of a damped Hessian [in, in], fp64, in any layout; of a column without
    inputs as if it had 1.

    It is R⁻¹ of H = RRᵀ with R upper, and that is the lower factor of H with rows and columns in reverse.

    Args:
        hessian: fp32 or fp64.
        damping: of the mean of its diagonal, what is added to that.
        order: of rows and columns; None: as they lie.

    Raises:
        ValueRangeError: there is none.
    """
    from scipy.linalg import lapack

    back = np.arange(len(hessian))[::-1] if order is None else np.asarray(order)[::-1]
    h = np.asarray(hessian)[back[:, None], back].astype(np.float64)
    dead = np.diag(h) <= 0
    h[dead, :], h[:, dead] = 0, 0
    h[dead, dead] = 1
    h[np.diag_indices_from(h)] += damping * np.mean(np.diag(h))
    # Symmetric, so that LAPACK's order of columns is the order of rows here: its upper factor is a lower one.
    upper, wrong = lapack.dpotrf(h.T, lower=0, overwrite_a=1)
    if wrong or not np.isfinite(np.diag(upper)).all():
        raise ValueRangeError(f"XᵀX of inputs has no Cholesky factor with a damping of {damping}, or is not finite")
    found, wrong = lapack.dtrtri(upper, lower=0, overwrite_c=1)
    assert not wrong
    return found.T[::-1, ::-1]


def correct(
    matrix: Any, upper: Any, size: int, find_scales: FindScales, round_columns: RoundColumns, *, order: Any
) -> None:
    """Round the columns of `matrix` [out, in], float32, one after the other.

    Args:
        upper: `factor` of its inputs, in `order`.
        size: columns of a block.
        find_scales, round_columns: what is done with blocks, and then with their columns.
        order: which columns come first, under scales of the weights as they were; None: as they lie, under scales of
            what they are when a block's first column is rounded.
    """
    from scipy.linalg import blas

    rows, n = matrix.shape
    columns = np.arange(n) if order is None else np.asarray(order)
    w = np.ascontiguousarray(matrix.T[columns], np.float64)  # a column after the other
    weights = np.empty(n)
    weights[columns] = np.diag(upper) ** -2.0
    if order is not None:
        find_scales(0, matrix, weights)
    for start in range(0, n, LAZY):
        stop = min(start + LAZY, n)
        errors = np.empty((stop - start, rows))
        first = start
        while first < stop:
            last = stop if order is not None else min(stop, (first // size + 1) * size)
            done = first - start
            if order is None and first % size == 0:
                own = slice(first, first + size)  # and may reach past the columns that are brought up to date together
                ahead = w[own] - np.ascontiguousarray(upper[start:first, own]).T @ errors[:done]
                find_scales(first // size, np.ascontiguousarray(ahead.T, np.float32), weights[own])
                w[first:last] = ahead[: last - first]
            round_columns(
                columns[first:last], w[first:last], upper[first:last, first:last], errors[done : last - start]
            )
            first = last
        if stop < n and rows:  # w[stop:] -= upper[start:stop, stop:].T @ errors, where it lies: F2PY copies no `c`
            ahead = np.ascontiguousarray(upper[start:stop, stop:])
            blas.dgemm(-1.0, errors.T, ahead.T, 1.0, w[stop:].T, trans_b=True, overwrite_c=True)


def by_block(find_scales: FindScales, size: int) -> FindScales:
    """`find_scales`, which takes one block of `size` columns, for several."""

    def blocks(first: int, values: Any, weights: Any) -> None:
        for k in range(0, len(weights), size):
            find_scales(first + k // size, values[:, k : k + size], weights[k : k + size])

    return blocks


def by_column(rounded: Rounded) -> RoundColumns:
    """Columns one after the other, in NumPy."""

    def round_columns(columns: Any, w: Any, upper: Any, errors: Any) -> None:
        for k, column in enumerate(columns.tolist()):
            error = errors[k] = (w[k] - rounded(column, w[k].astype(np.float32))) / upper[k, k]
            w[k + 1 :] -= upper[k, k + 1 :, None] * error

    return round_columns


def scratch(shape: tuple[int, ...], size: int) -> int:
    """Bytes that `factor` and `correct` take of a tensor of `shape` `[..., out, in]` in blocks of `size` columns, and
    the codes. Of a value: 8 as it becomes, 8 as float32 as it is and in order, 1 of a code, 4 of what blocks share; the
    errors of `LAZY` columns; of a block's values 54 for a search; the Hessian, that in order, and its factor.
    """
    rows, n = shape[-2:]
    return rows * (21 * n + 8 * min(n, LAZY) + 54 * min(size, n)) + (4 + 4 + 8) * n * n

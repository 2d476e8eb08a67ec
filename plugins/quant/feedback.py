"""Columns that make good what earlier ones lost: the arithmetic of GPTQ, whatever a column is rounded to.

Of a matrix W with inputs of second moments H = E[xxᵀ] columns are rounded in order; the error of each, divided by its
entry in the upper Cholesky factor of H⁻¹, is taken off all later columns (Frantar et al. 2022, algorithm 1). The square
of a column's error counts 1 / that entry², which is what it adds to the loss (theorem 2 of Frantar and Alistarh 2022,
OBC).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

LAZY = 128  # columns after which all later ones are brought up to date, by one product of matrices

Begin = Callable[[int, Any, Any], None]
"""`(block, values [out, size] float32, weights [size] float64)`: finds the scales of a block of columns, the squares of
whose errors count so much."""
Rounded = Callable[[int, Any], Any]
"""`(column, values [out] float32)`: what these values of a column become, under the scales of its block."""


def factor(hessian: Any, damping: float) -> Any:
    """The upper Cholesky factor of the inverse of a damped Hessian, fp64; of a column without inputs as if it had 1.

    It is R⁻¹ of H = RRᵀ with R upper, and that is the lower factor of H with rows and columns in reverse.
    """
    from scipy.linalg import lapack

    h = np.array(hessian, np.float64)
    dead = np.diag(h) <= 0
    h[dead, :], h[:, dead] = 0, 0
    h[dead, dead] = 1
    h[np.diag_indices_from(h)] += damping * np.mean(np.diag(h))
    low = np.linalg.cholesky(h[::-1, ::-1])
    found, wrong = lapack.dtrtri(np.asfortranarray(low[::-1, ::-1]))
    assert not wrong
    return np.ascontiguousarray(found)


def correct(
    matrix: Any, hessian: Any, size: int, begin: Begin, rounded: Rounded, *, damping: float, act_order: bool
) -> None:
    """Round the columns of `matrix` [out, in], float32, one after the other.

    Args:
        hessian: [in, in].
        size: columns of a block.
        begin, rounded: what is done with a block, and then with each of its columns.
        damping: of the mean of H's diagonal, what is added to that.
        act_order: columns of the largest inputs first, under scales of the weights as they were; else of what they are
            when a block's first column is rounded.
    """
    rows, n = matrix.shape
    order = np.argsort(-np.diag(hessian), kind="stable") if act_order else np.arange(n)
    upper = factor(np.asarray(hessian)[np.ix_(order, order)], damping)
    w = np.ascontiguousarray(matrix.T[order], np.float64)  # a column after the other
    weights = np.empty(n)
    weights[order] = np.diag(upper) ** -2.0
    for b in range(n // size if act_order else 0):
        begin(b, matrix[:, b * size : (b + 1) * size], weights[b * size : (b + 1) * size])
    for start in range(0, n, LAZY):
        stop = min(start + LAZY, n)
        errors = np.empty((stop - start, rows))
        for k in range(start, stop):
            if not act_order and k % size == 0:
                # A block may reach past the columns that are up to date.
                ahead = w[k : k + size].copy()
                if k + size > stop:
                    ahead[stop - k :] -= upper[start:k, stop : k + size].T @ errors[: k - start]
                begin(k // size, np.ascontiguousarray(ahead.T, np.float32), weights[k : k + size])
            error = errors[k - start] = (w[k] - rounded(int(order[k]), w[k].astype(np.float32))) / upper[k, k]
            w[k + 1 : stop] -= upper[k, k + 1 : stop, None] * error
        w[stop:] -= upper[start:stop, stop:].T @ errors


def scratch(shape: tuple[int, ...]) -> int:
    """Bytes that `correct` takes of a tensor of `shape` `[..., out, in]`, and the codes: a matrix in fp64 twice, its
    codes, its Hessian, and three such in fp64."""
    rows, n = shape[-2:]
    return 8 * (2 * rows + rows // 8) * n + (4 + 3 * 8) * n * n

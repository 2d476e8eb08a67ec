"""The best that adapters of a rank can do about what packing loses: of the outputs, not of the weights.

    w - dq(q(w)) ≈ scale · b · a,   the least Σ (what is left of a column · how large its input is)²

That is a singular value decomposition with columns weighed by their inputs (arXiv 2402.02446, LQER; arXiv 2410.06040,
QERA, whose approximation takes inputs for uncorrelated). Without weights it is LoftQ's first step (arXiv 2310.08659).
"""

from typing import Any

import numpy as np

MORE, ROUNDS = 8, 4  # Halko et al., arXiv 0909.4061: a few more columns, and powers that part singular values
LEAST = 1e-3  # of an input, as a share of all: what was never seen may come


def correction(lost: Any, sizes: Any, rank: int, seed: list[int]) -> tuple[Any, Any]:
    """b `[out, r]` and a `[r, in]`, float32, of which b · a is nearest to `lost`.

    Args:
        lost: float32 `[out, in]`.
        sizes: float32 `[in]`, root mean square of each input; None: all alike.
        seed: of the random projection; the result hardly depends on it.
    """
    by = np.ones(lost.shape[1], np.float32) if sizes is None else sizes
    by = np.maximum(by, LEAST * np.sqrt(np.mean(np.square(by))) or np.float32(1))
    weighed = lost * by
    few = min(rank + MORE, *lost.shape)
    q = weighed @ np.random.default_rng(seed).standard_normal((lost.shape[1], few)).astype(np.float32)
    for _ in range(ROUNDS):
        q, _ = np.linalg.qr(q)
        q, _ = np.linalg.qr(weighed.T @ q)
        q = weighed @ q
    q, _ = np.linalg.qr(q)
    u, s, v = np.linalg.svd(q.T @ weighed, full_matrices=False)
    root, r = np.sqrt(s[:rank]), min(rank, few)
    b, a = np.zeros((lost.shape[0], rank), np.float32), np.zeros((rank, lost.shape[1]), np.float32)
    b[:, :r], a[:r] = (q @ u[:, :rank]) * root, root[:, None] * v[:rank] / by
    return b, a

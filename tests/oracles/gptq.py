"""GPTQ as Frantar et al. 2022 state it (section 3.3, step 1): one column after another, H⁻¹ without its factor.

After a column is rounded its row and column leave H⁻¹ by one step of Gaussian elimination. Slow, float64, NumPy only.
"""

from collections.abc import Callable
from typing import Any

import numpy as np


def gptq(matrix: Any, hessian: Any, damping: float, rounded: Callable[[int, Any], Any]) -> Any:
    """The rounded values of `matrix` [out, in], float64, its columns taken in order.

    Args:
        rounded: `rounded(j, values)`: the nearest values that column j can have.
    """
    w, h = np.array(matrix, np.float64), np.array(hessian, np.float64)
    h += np.eye(len(h)) * damping * np.trace(h) / len(h)
    inverse = np.linalg.inv(h)
    for j in range(len(h)):
        near = rounded(j, w[:, j].copy())
        error = (w[:, j] - near) / inverse[j, j]
        w[:, j] = near
        w[:, j + 1 :] -= np.outer(error, inverse[j, j + 1 :])
        inverse = inverse - np.outer(inverse[:, j], inverse[j, :]) / inverse[j, j]
    return w

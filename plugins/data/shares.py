"""Which examples are held out: a share of them, chosen by what each holds.

By its digest an example is on the same side in every run, whatever else there is, and so are its copies.
"""

from collections.abc import Callable

import numpy as np

from pipeline.errors import ConfigError


def share(held_out: float) -> None:
    """Raises ConfigError: no share."""
    if not 0 <= held_out < 1:
        raise ConfigError(f"data.held_out={held_out}: a share of the examples, from 0 to less than 1, is expected")


def is_held_out(part: float) -> Callable[[np.ndarray], np.ndarray]:
    """Of digests (uint64), whether each falls into a share."""
    bound = np.uint64(int(part * 2**64))
    return lambda digests: digests < bound

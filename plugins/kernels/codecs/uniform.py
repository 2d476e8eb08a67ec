"""Random numbers for stochastic rounding that depend on a value's place only: in any order, on any thread.

Each is a SplitMix64 output (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014) of the
flat index under a key; its top 24 bits make a float32 in [0, 1).
"""

from typing import Any

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def key(seed: int, name: str) -> int:
    """A key for the tensor `name` of a run with `seed`."""
    found = _mixed(seed & _MASK)
    for byte in name.encode():
        found = _mixed(((found ^ byte) + _GOLDEN) & _MASK)
    return found


def _mixed(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31


def at(index: int, key: int) -> float:
    """The number of flat index `index`."""
    return (_mixed(((index + 1) * _GOLDEN + key) & _MASK) >> 40) / float(1 << 24)


def box(starts: Any, width: int, key: int) -> Any:
    """float32 `[rows, width]`: numbers of the flat indices starts[r] … starts[r] + width - 1 (int64 `[rows]`)."""
    z: Any = np.asarray(starts, np.uint64)[:, None] + np.arange(1, width + 1, dtype=np.uint64)
    z *= np.uint64(_GOLDEN)
    z += np.uint64(key)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)

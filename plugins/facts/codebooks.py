"""Code books: the values that codes stand for where no formula of bits says them."""

from functools import cache
from typing import Any, Final

import numpy as np

# QLoRA (arXiv 2305.14314), appendix E; `create_normal_map` and the kernels of bitsandbytes have these digits.
NF4: Final = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_DECADES: Final = 7


@cache
def nf4() -> Any:
    """float32 `[16]`, ascending; not to be written to."""
    return _fixed(np.array(NF4, "<f4"))


@cache
def dynamic8() -> Any:
    """float32 `[256]`, ascending: bitsandbytes' signed dynamic map of 8 bits; not to be written to.

    0, 1 and, for each of seven decades 10^-6 … 1, ± the middles of 2^i equal parts of [0.1, 1] (8-Bit Optimizers via
    Block-wise Quantization, arXiv 2110.02861, section 2.1; QLoRA, section 3). The last bits depend on how it is
    computed: ends in one rounding, counted from the nearer side (torch.linspace), then float32.
    """
    one, tenth = np.float32(1), np.float32(0.1)
    values = [np.float32(0), one]
    for i in range(_DECADES):
        at = np.arange(2**i + 1)
        step = np.float64((one - tenth) / np.float32(2**i))
        up, down = np.float64(tenth) + step * at, 1.0 - step * (2**i - at)
        ends = np.where(at < len(at) // 2, up, down).astype(np.float32)
        middles = (ends[:-1] + ends[1:]) / np.float32(2)
        scaled = middles * np.float32(10.0 ** (i + 1 - _DECADES))
        values += [*scaled, *-scaled]
    return _fixed(np.sort(np.array(values, "<f4")))


def _fixed(table: Any) -> Any:
    table.setflags(write=False)
    return table

"""attention by tokamax (github.com/openxla/tokamax), a package of Pallas kernels for NVIDIA's GPUs: flash attention by
way of Mosaic on Hopper and later, where that cannot by way of Triton, and never, in silence, by XLA.

It has no sinks, and reads no packed keys in a cache's form; `declines.py` says so beforehand. Gradients are its own.
"""

import sys
from importlib import import_module
from typing import Any

from pipeline.errors import Unsupported
from plugins.kernels.attention.masked import attended

KERNELS = ("mosaic", "triton")


def attention(*args: Any, **options: Any) -> Any:
    """See the op's docstring."""
    return through(KERNELS, *args, **options)


def through(
    implementation: Any, q: Any, k: Any, v: Any, q_positions: Any, k_positions: Any, *, scale: float,
    window: int | None = None, sinks: Any = None, softcap: float | None = None, causal: bool = True,
    segments: Any = None,
) -> Any:  # fmt: skip
    """The same by other implementations of tokamax's: `xla` is what this is checked with where there is no GPU.

    Raises:
        Unsupported: there are sinks.
    """
    if sinks is not None:
        raise Unsupported("tokamax's attention has no sinks; kernels.attention=[pallas] has")
    program = import_module("tokamax").dot_product_attention
    flags = import_module("absl.flags").FLAGS
    if not flags.is_parsed():  # it would take our command line for its own, and stop
        flags(sys.argv[:1])

    def fused(q: Any, k: Any, v: Any, mask: Any, causal: bool, window: int | None) -> Any:
        return program(
            q, k, v, mask=mask, scale=scale, is_causal=causal, logits_soft_cap=softcap, implementation=implementation,
            local_window_size=None if window is None else (window - 1, 0),
        )  # fmt: skip

    return attended(fused, q, k, v, q_positions, k_positions, window=window, causal=causal, segments=segments)

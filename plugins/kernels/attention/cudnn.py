"""attention by cuDNN, as JAX has it (`jax.nn.dot_product_attention`): fused, on NVIDIA's GPUs, for 16-bit floats.

It has neither sinks nor a soft cap and reads no packed keys; `declines.py` says so beforehand. Gradients are its own.
"""

from typing import Any

import jax

from pipeline.errors import Unsupported
from plugins.kernels.attention.masked import attended


def attention(*args: Any, **options: Any) -> Any:
    """See the op's docstring."""
    return through("cudnn", *args, **options)


def through(
    implementation: Any, q: Any, k: Any, v: Any, q_positions: Any, k_positions: Any, *, scale: float,
    window: int | None = None, sinks: Any = None, softcap: float | None = None, causal: bool = True,
    segments: Any = None,
) -> Any:  # fmt: skip
    """The same by another `implementation` of JAX's: `xla` is what this is checked with where there is no GPU.

    Raises:
        Unsupported: there are sinks, or a soft cap.
    """
    for name, given in (("sinks", sinks), ("soft cap", softcap)):
        if given is not None:
            raise Unsupported(f"cuDNN's attention has no {name}; kernels.attention=[xla] has")

    def fused(q: Any, k: Any, v: Any, mask: Any, causal: bool, window: int | None) -> Any:
        return jax.nn.dot_product_attention(
            q, k, v, mask=mask, scale=scale, is_causal=causal, implementation=implementation,
            local_window_size=None if window is None else (window - 1, 0),
        )  # fmt: skip

    return attended(fused, q, k, v, q_positions, k_positions, window=window, causal=causal, segments=segments)

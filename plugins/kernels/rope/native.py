"""rope in C++: one pass over the heads, by all threads; cosines and sines are made where they are wanted.

XLA makes them anew for every layer, and that on one thread.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plugins.kernels.gradients import once
from plugins.kernels.native import ffi, library
from plugins.kernels.rope import xla
from plugins.kernels.varying import alike


def rope(x: Any, positions: Any, inv_freq: Any, *, concentration: float = 1.0, interleaved: bool = False) -> Any:
    """See the op's docstring."""
    x, positions = jnp.asarray(x), jnp.asarray(positions).astype(jnp.int32)
    inv_freq = jnp.asarray(inv_freq, jnp.float32)
    return _rope((concentration, interleaved), *alike(x, positions, inv_freq))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rope(how: tuple[float, bool], x: Any, positions: Any, inv_freq: Any) -> Any:
    dtype = x.dtype if x.dtype in (jnp.float32, jnp.bfloat16) else jnp.float32
    turned = ffi.call("rows", "wm_rope", jax.ShapeDtypeStruct(x.shape, dtype))(  # type: ignore[no-untyped-call]
        x.astype(dtype), positions, inv_freq,
        isa=np.int64(library.isa()), concentration=np.float32(how[0]), interleaved=np.int64(how[1]),
    )  # fmt: skip
    return turned.astype(x.dtype)


def _forward(how: tuple[float, bool], *args: Any) -> tuple[Any, Any]:
    return _rope(how, *args), args


@once
def _backward(how: tuple[float, bool], kept: Any, dy: Any) -> tuple[Any, None, Any]:
    """Turned back by the same angles. The gradient of frequencies is XLA's, and computed for who wants it."""
    x, positions, inv_freq = kept
    of = partial(xla.rope, x, positions, concentration=how[0], interleaved=how[1])
    return _rope(how, dy, positions, -inv_freq), None, jax.vjp(of, inv_freq)[1](dy)[0]


_rope.defvjp(_forward, _backward)

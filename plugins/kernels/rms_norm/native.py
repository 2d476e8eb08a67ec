"""rms_norm in C++: one call, where XLA makes four loops of it. Of what is differentiated all is XLA's."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plugins.kernels.gradients import once
from plugins.kernels.native import ffi, library
from plugins.kernels.rms_norm import xla
from plugins.kernels.varying import alike

_STORED = (jnp.float32, jnp.bfloat16)


def rms_norm(x: Any, weight: Any, *, eps: float, plus_one: bool = False) -> Any:
    """See the op's docstring."""
    return _rms_norm((float(eps), plus_one), *alike(jnp.asarray(x), jnp.asarray(weight)))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rms_norm(how: tuple[float, bool], x: Any, weight: Any) -> Any:
    rows, gain = (a if a.dtype in _STORED else a.astype(jnp.float32) for a in (x, weight))
    result = jax.ShapeDtypeStruct(rows.shape, rows.dtype)  # type: ignore[no-untyped-call]
    found = ffi.call("rows", "wm_rms_norm", result)(
        rows, gain, isa=np.int64(library.isa()), eps=np.float32(how[0]), plus_one=np.int64(how[1])
    )
    return found.astype(x.dtype)


def _forward(how: tuple[float, bool], x: Any, weight: Any) -> tuple[Any, Any]:
    return jax.vjp(partial(xla.rms_norm, eps=how[0], plus_one=how[1]), x, weight)


@once
def _backward(how: tuple[float, bool], back: Any, dy: Any) -> tuple[Any, Any]:
    return back(dy)  # type: ignore[no-any-return]


_rms_norm.defvjp(_forward, _backward)

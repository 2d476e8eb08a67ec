"""XLA's door: the handlers of src/ffi.cc, registered once a process, and what calls them inside a program.

A handler works on XLA's own threads and never waits for one (src/parallel.h). XLA's cache of compiled programs knows a
handler by its name alone; the name therefore holds the version of the library.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plugins.kernels.native import build, library


@cache
def _registered(handler: str, unit: str = "ffi") -> str:
    """The name under which XLA knows `handler` of src/<unit>.cc.

    Raises:
        as `build.library`.
    """
    path = build.library(unit, include=(jax.ffi.include_dir(),))
    name = f"weightmill.{handler}.{path.stem}"
    jax.ffi.register_ffi_target(name, _capsule(path, handler), platform="cpu")
    return name


def _capsule(path: Path, handler: str) -> Any:
    return jax.ffi.pycapsule(getattr(ctypes.CDLL(str(path)), handler))  # type: ignore[no-untyped-call]


def call(unit: str, handler: str, results: Any) -> Any:
    """What calls `handler` of src/<unit>.cc inside a program: `jax.ffi.ffi_call`, which takes arrays and attributes.

    Under `vmap` it is one call for each of the batch; inside `shard_map` it sees what is local.

    Args:
        results: a `jax.ShapeDtypeStruct`, or several.
    """
    return jax.ffi.ffi_call(_registered(handler, unit), results, vmap_method="sequential")


def grouped(x: Any, expert: Any, codes: Any, scales: Any) -> Any:
    """float32 `[A, out]`: each row of `x` times the weights of its expert.

    Args:
        x: float32 `[A, in]`.
        expert: int32 `[A]`; a negative one gives zeros. Rows of one expert that stand together share its weights.
        codes, scales: of MXFP4, uint8 `[E, out, in / 2]` and `[E, out, in / 32]`.
    """
    result = jax.ShapeDtypeStruct((x.shape[0], codes.shape[1]), jnp.float32)  # type: ignore[no-untyped-call]
    call = jax.ffi.ffi_call(_registered("wm_mxfp4_grouped"), result)
    return call(x, expert, codes, scales, isa=np.int64(library.isa()))

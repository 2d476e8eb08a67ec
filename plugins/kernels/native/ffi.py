"""XLA's door: the handlers of src/ffi.cc and src/gemm.cc, registered once a process, and what calls them in a program.

A handler works on XLA's own threads and never waits for one (src/parallel.h). XLA's cache of compiled programs knows a
handler by its name alone; the name therefore holds the version of the library.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec, dtype_name
from plugins.facts.codebooks import dynamic8
from plugins.kernels.native import build, library, scheme, tuning
from plugins.kernels.native.tuning import Tuned
from plugins.kernels.varying import along, axes_of, typed

DOTS: Final = 1
"""Whether products of pairs of bfloat16 are taken: where the machine is quick at them; 2: wherever it has them."""


def registered(unit: str, handler: str) -> str:
    """The name under which XLA knows `handler` of `src/<unit>.cc` for the instruction set that runs, and `jax.export`
    is to be told that it may (`DisabledSafetyCheck.custom_call`).

    Raises:
        as `build.library`.
    """
    return _registered(unit, handler, library.isa())


@cache
def _registered(unit: str, handler: str, isa: int) -> str:
    path = build.library(unit, isa)
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
    name = registered(unit, handler)

    def called(*args: Any, **attributes: Any) -> Any:
        axes = axes_of(args)
        given = jax.tree.map(lambda result: typed(result, axes), results)
        call = jax.ffi.ffi_call(name, given, vmap_method="sequential")
        return call(*along(axes, args), **attributes)  # type: ignore[no-untyped-call]

    return called


def grouped(x: Any, expert: Any, stacks: Sequence[Any], bits: int = 0, tuned: Tuned | None = None) -> list[Any]:
    """float32 `[A, out]` for each stack of weights: each assignment's row of `x` times the weights of its expert.

    One call for them all: activations are put in order once, and threads are woken once.

    Args:
        x: float32 or bfloat16 `[N, in]`; any other float is taken as float32.
        expert: int32 `[A]`, A a multiple of N: assignment a is of row a // (A / N). Rows of one expert share its
            weights. A negative expert gives zeros. None: A is N, and there is one matrix.
        stacks: arrays and QTensors `[E, out, in]`, `out` may differ; or `[out, in]` where `expert` is None.
        bits: 8 or 16: rows are rounded to such integers, in blocks of 32, if they are more than a few (src/gemm_int.h)
            and `scheme.rounded_rows` of all stacks; a few, to 8 bits alone, where `scheme.takes_integers` of all
            stacks (src/gemv_rounded.h). 0: exact.
        tuned: how the work is divided; None: as is best here.
    """
    x = x if x.dtype in (jnp.float32, jnp.bfloat16) else x.astype(jnp.float32)
    count = x.shape[0] if expert is None else expert.shape[0]
    given = [part for w in stacks for part in _components(w)]
    results = [jax.ShapeDtypeStruct((count, w.shape[-2]), jnp.float32) for w in stacks]  # type: ignore[no-untyped-call]
    matrices = 1 if expert is None else stacks[0].shape[0]
    if count < matrices * max(scheme.rounded_rows(spec_of(w), bits) for w in stacks):
        bits = 0
    floats = bits == 0 and x.dtype == jnp.float32
    isa = library.ISAS[library.isa()]
    many = count > matrices * min(scheme.few_rows(spec_of(w), floats, isa) for w in stacks)
    tuned = tuned or tuning.best()
    options = {
        "dots": 0 if library.forced() else DOTS,
        **({"bits": bits, **asdict(tuned.gemm)} if many else asdict(tuned.gemv)),
    }
    formats = np.array([scheme.numbers(spec_of(w)) for w in stacks], np.int64).reshape(-1)
    chosen = np.zeros(0, np.int32) if expert is None else expert
    numbers = {name: np.int64(value) for name, value in {"isa": library.isa(), **options}.items()}
    rounded = bits == 8 and all(scheme.takes_integers(spec_of(w)) for w in stacks)
    product = call("gemm" if many else "rounded" if rounded else "ffi", "wm_grouped", results)
    return list(product(x, chosen, _book(stacks), *given, formats=formats, **numbers))


def rows(ids: Any, w: Any, dtype: Any) -> Any:
    """`[n, D]` of `dtype`: rows of a matrix `[V, D]`, an array or a QTensor, that `ids` int32 `[n]` ask for.

    Args:
        dtype: float32 or bfloat16.
    """
    result = jax.ShapeDtypeStruct((ids.shape[0], w.shape[-1]), dtype)  # type: ignore[no-untyped-call]
    found = call("rows", "wm_embed", result)
    format = np.array(scheme.numbers(spec_of(w)), np.int64)
    return found(ids, _book([w]), *_components(w), isa=np.int64(library.isa()), format=format)


def spec_of(w: Any) -> TensorSpec:
    """Of an array or a QTensor."""
    return TensorSpec(tuple(w.shape), dtype_name(w.dtype) if _scheme(w) is None else "F32", _scheme(w))


def _scheme(w: Any) -> Any:
    return w.scheme if isinstance(w, QTensor) else None


def _book(ws: Sequence[Any]) -> Any:
    """What scales that are codes are worth; without elements where none are."""
    coded = any(_scheme(w) is not None and w.scheme.whole_only for w in ws)
    return dynamic8() if coded else np.zeros(0, np.float32)


def _components(w: Any) -> tuple[Any, Any, Any, Any]:
    """Codes, scales, zeros and second; those that there are not have no elements."""
    none = np.zeros(0, np.uint8)
    if not isinstance(w, QTensor):
        return w, none, none, none
    return w.codes, *(none if part is None else part for part in (w.scales, w.zeros, w.second))

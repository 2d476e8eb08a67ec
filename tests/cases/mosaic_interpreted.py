"""Mosaic GPU kernels interpreted in a time that tests have: JAX compiles what a warpgroup does again for each of them
and for every block; once a kernel is enough, without most optimizations."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.extend.core as core
from jax._src.pallas.mosaic.interpret import thread_map

QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@contextmanager
def compiled_once() -> Iterator[None]:
    """Meanwhile."""
    programs: dict[int, tuple[Any, Any]] = {}  # by jaxpr, which they keep alive
    one_at_a_time = threading.Lock()

    def run(jaxpr: Any, consts: Any, *args: Any) -> None:
        with one_at_a_time:
            if id(jaxpr) not in programs:

                def body(consts: Any, *args: Any) -> None:
                    core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, consts))(*args)

                lowered = jax.jit(body).trace(consts, *args).lower()
                programs[id(jaxpr)] = jaxpr, lowered.compile(compiler_options=QUICKLY)
        programs[id(jaxpr)][1](consts, *args)

    before, thread_map._run_jaxpr = thread_map._run_jaxpr, run
    try:
        yield
    finally:
        thread_map._run_jaxpr = before

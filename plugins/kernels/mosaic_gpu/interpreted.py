"""Mosaic GPU kernels on CPUs, to check them: JAX's interpreter, as one callback without effects.

The interpreter runs the warpgroups of a block as threads of the host, with memory, copies and barriers made up between
them. It talks to the host by callbacks with effects, which a program for GPUs would have too because it might have been
interpreted; so what a program has is one callback that has none. JAX (0.10.2) has the interpreter in modules that are
not public, which are imported when something is interpreted, and here alone.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import jax

_ROOM = "jax._src.pallas.mosaic_gpu.interpret"
_alone = threading.Lock()  # the interpreter's memory is one for all kernels of a process
_races: list[str] | None = None


def interpreted(start: Callable[..., Any], *args: Any) -> Any:
    """What the kernel `start(interpret=…)` makes of arrays, block after block."""
    interpreter = import_module(f"{_ROOM}.interpret_pallas_call")
    parameters = import_module(f"{_ROOM}.params").InterpretGPUParams(detect_races=_races is not None)
    with _alone:
        try:
            found = jax.block_until_ready(jax.jit(start(interpret=parameters))(*args))  # type: ignore[no-untyped-call]
        except BaseException:
            interpreter.reset_gpu_interpret_mode_state()  # or nothing is interpreted any more
            raise
        if _races is not None and interpreter.get_races().races_found:
            _races.append("a warpgroup reads or writes what another may not have done with")
        return found


@contextmanager
def races() -> Iterator[list[str]]:
    """What kernels that are interpreted meanwhile do without waiting for each other; empty where they wait."""
    global _races
    before, _races = _races, []
    try:
        yield _races
    finally:
        _races = before

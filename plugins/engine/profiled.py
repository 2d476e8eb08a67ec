"""`jax.profiler` around what a task does with JAX, where a traced run asks for that (`trace_jax=true`)."""

import jax

from pipeline import tracing


def begin() -> None:
    """Profile from here to the end of the task; the first call in a task does it."""
    if tracing.active:
        tracing.listen()
        tracing.profile(jax.profiler.start_trace, jax.profiler.stop_trace)

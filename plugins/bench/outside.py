"""Where a step of decoding spends its time outside the native kernels: what XLA's profiler saw of one text."""

import gzip
import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax

KERNEL = "ffi_call"  # what XLA calls the calls of handlers


def outside(decode: Callable[[], float], steps: int) -> tuple[float, float]:
    """Seconds of a step in which no handler ran, and handlers called in a step.

    Args:
        decode: makes `steps` new tokens, and says how many seconds that took; what it does before counts for nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            seconds = decode()
        (file,) = Path(folder).rglob("*.trace.json.gz")
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    return outside_of(events, seconds, steps)


def outside_of(events: Iterable[dict[str, Any]], seconds: float, steps: int) -> tuple[float, float]:
    """See `outside`; of a trace whose last `seconds` they are."""
    found = [(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("ph") == "X" and e["name"].startswith(KERNEL)]
    if not found:
        return seconds / steps, 0.0
    begin = max(end for _, end in found) - seconds * 1e6
    inside = sorted((max(start, begin), end) for start, end in found if end > begin)
    covered, until = 0.0, begin
    for start, end in inside:
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return (seconds - covered / 1e6) / steps, len(inside) / steps

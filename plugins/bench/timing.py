"""What the benchmarks of the model ops share: timing in turns, packed weights of any size, and the table."""

import statistics
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np

import pipeline.tensors.pytree  # noqa: F401
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import numpy_dtype


def packed(scheme: Scheme, shape: tuple[int, ...]) -> QTensor:
    """Random codes (a few KiB of them, repeated), every scale near 2^-9."""
    parts: dict[str, Any] = {}
    for name, dims in scheme.components(shape).items():
        dtype = numpy_dtype(scheme.dtypes[name])
        if name == "codes":
            some = np.random.default_rng(0).integers(0, 256, 1 << 16, dtype=np.uint8)
            parts[name] = np.resize(some & 0x77 if scheme.element == "e4m3" else some, dims)
        else:
            parts[name] = np.full(dims, 118 if scheme.scale == "e8m0" else 2.0**-9, dtype)
    found: QTensor = jax.device_put(QTensor(scheme=scheme, **parts))
    return found


def has_torch() -> bool:
    """Whether torch is installed; where not, its rows are left out of the table, and the table says so."""
    return find_spec("torch") is not None


def in_turn(table: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of every call. In turn, so that a busy machine slows all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in table}
    for i in range(rounds + 2):  # the first rounds warm up and compile
        for name, call in table.items():
            start = time.perf_counter()
            jax.block_until_ready(call())  # type: ignore[no-untyped-call]
            if i > 1:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(s) for name, s in seconds.items()}


def report(title: str, seconds: Mapping[str, float], nbytes: Mapping[str, float], flops: float, base: str) -> None:
    """One table: milliseconds, GB/s of what each call reads of the weights, GFLOP/s, and speed relative to `base`."""
    print(f"\n{title}")
    print(f"{'':36}{'ms':>9}{'GB/s':>8}{'GFLOP/s':>10}{'× ' + base:>20}")
    for name, s in seconds.items():
        print(f"{name:36}{s * 1e3:9.3f}{nbytes[name] / s / 1e9:8.2f}{flops / s / 1e9:10.1f}{seconds[base] / s:20.2f}")
    if not has_torch():
        print("torch is not installed: its rows are left out")

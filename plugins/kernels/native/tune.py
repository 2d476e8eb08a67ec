"""`python -m pipeline tune`: time how native kernels may divide their work on this machine, and keep what is fastest.

One setting after the other: all its candidates, in turn and several times over, on products of the sizes that models
have, a token at a time and a prompt. All of that is done twice, with memory of its own, since where arrays lie and how
threads wake can make a third. What is not faster than what suits most by more than noise, both times, stays as it is.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, median
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

import pipeline.tensors.pytree  # noqa: F401  QTensors may be traced
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from plugins.kernels.native import ffi, tuning
from plugins.kernels.native.tuning import CANDIDATES, Tuned

TIMES: Final = 2
ROUNDS: Final = 5
SECONDS: Final = 0.01  # of one measurement, by as many calls as that takes
WORTH: Final = 0.03  # a candidate that is faster by less than this share may be noise


def tune(say: Callable[[str], None]) -> list[tuple[str, str, str, float]]:
    """(setting, what it is where nothing was measured, what it is now, how much faster that is) of all; they are kept.

    Raises:
        StorageError: they cannot be.
    """
    try:
        cpu = jax.devices("cpu")[0]
    except RuntimeError as why:  # JAX_PLATFORMS=cuda
        say(f"nothing is timed on CPUs: {why}")
        return []
    with jax.default_device(cpu):
        return _tuned(say)


def _tuned(say: Callable[[str], None]) -> list[tuple[str, str, str, float]]:
    default = tuned = tuning.known()
    found = []
    for name, candidates in CANDIDATES.items():
        say(f"timing {name}: {', '.join(map(str, candidates))}")
        group, field = name.split(".")
        usual = getattr(getattr(default, group), field)
        ways = {n: replace(tuned, **{group: replace(getattr(tuned, group), **{field: n})}) for n in candidates}
        times = [_timed(group, ways) for _ in range(TIMES)]
        gains = {n: min(took[usual] / took[n] for took in times) for n in ways}
        fastest = max(gains, key=lambda n: gains[n])
        chosen = fastest if gains[fastest] > 1 + WORTH else usual
        tuned = ways[chosen]
        found.append((name, f"{usual:,}", f"{chosen:,}", gains[chosen]))
    tuning.keep(tuned)
    return found


def _timed(group: str, ways: dict[int, Tuned]) -> dict[int, float]:
    """What calls take with each, beside what they take with all: geometric means, of a call the median of all rounds.

    Each round is compared within itself: a virtual machine is slower for a while when its neighbours are at work, and
    whatever ran meanwhile would look so.
    """
    calls, logs = _calls(group), dict.fromkeys(ways, 0.0)
    for x, expert, w in calls:
        programs = {n: _program(x, expert, w, how) for n, how in ways.items()}
        times = max(1, round(SECONDS / min(_seconds(p, 1) for p in programs.values())))
        rounds = [{n: math.log(_seconds(p, times)) for n, p in programs.items()} for _ in range(ROUNDS)]
        logs = {n: logs[n] + median(took[n] - fmean(took.values()) for took in rounds) for n in ways}
    return {n: math.exp(log / len(calls)) for n, log in logs.items()}


def _program(x: Any, expert: Any, w: Any, how: Tuned) -> Callable[[], Any]:
    compiled = jax.jit(lambda x, w: ffi.grouped(x, expert, [w], tuned=how)[0]).lower(x, w).compile()
    return lambda: compiled(x, w)


def _seconds(program: Callable[[], Any], times: int) -> float:
    """Of one call, when there are so many, each with what the last has left in caches."""
    program().block_until_ready()
    start = time.perf_counter()
    for _ in range(times):
        last = program()
    last.block_until_ready()
    return (time.perf_counter() - start) / times


def _calls(group: str) -> list[tuple[Any, Any, Any]]:
    """x, expert and weights of products as models have them: gpt-oss's experts and projections, and smaller ones."""
    experts, few = np.array([3, 0, 2, 5], np.int32), 1 if group == "gemv" else 128
    chosen = np.repeat(np.arange(4, dtype=np.int32), 32) if group == "gemm" else experts
    int8 = Scheme("int8", 32, "f16")
    return [
        (_activations(len(chosen), 2880), chosen, _packed(MXFP4, 6, 2880, 2880)),
        (_activations(few, 2880), None, _packed(int8, 4096, 2880)),
        (_activations(few, 576), None, _packed(int8, 576, 576)),
        (_activations(few, 2880), None, jax.device_put(_activations(2880, 2880).astype(jnp.bfloat16))),
    ]


def _activations(*shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape, np.float32))


def _packed(scheme: Scheme, *shape: int) -> Any:
    shapes, rng = scheme.components(shape), np.random.default_rng(1)
    codes = rng.integers(0, 256, shapes["codes"], np.uint8)
    is_power = scheme.scale == "e8m0"
    scales = np.full(shapes["scales"], 120, np.uint8) if is_power else np.ones(shapes["scales"], np.float16)
    return jax.tree.map(jnp.asarray, QTensor(codes, scales, scheme))

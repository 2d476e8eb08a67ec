"""Prefill's products beside the machine's peak: `python -m plugins.bench.prefill`.

The experts of a gpt-oss-20b layer (32 of them, 4 a token, MXFP4, 2880 → 5760 and 2880 → 2880) for 512 tokens, exact and
over integers, in operations a second of CPU time: threads that wait for a busy machine do not count, so that one core's
peak of fused products (of dot products of bytes, where there are such) is what they are held to. It is not a test:
nothing here checks a result.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pipeline.tensors.pytree  # noqa: F401
from pipeline.tensors.scheme import MXFP4
from pipeline.testing.memory import quantized
from plugins.bench.machine import limits
from plugins.kernels.native import ffi, library

EXPERTS, CHOICES = 32, 4
SHAPES = ((5760, 2880), (2880, 2880))


def peak(int8: bool = False, rounds: int = 2_000_000) -> float:
    """Operations a second of CPU time of one core, from registers alone; 0 where the machine has none of the kind."""
    call = limits().wm_limit_dot_int8 if int8 else limits().wm_limit_multiply_add
    total = np.ones(1, np.float32)
    start = time.thread_time()
    done: float = call(library.isa(), rounds, 0.5, total.ctypes.data)
    return done / (time.thread_time() - start)


def cpu_seconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    jax.block_until_ready(call())  # type: ignore[no-untyped-call]
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=512)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    chosen = np.stack([rng.permutation(EXPERTS)[:CHOICES] for _ in range(args.tokens)]).astype(np.int32).reshape(-1)
    calls: dict[tuple[int, int, int], Callable[[], Any]] = {}
    for out, n in SHAPES:
        w = jax.device_put(quantized(MXFP4, (EXPERTS, out, n)))
        x = jnp.asarray(rng.standard_normal((args.tokens, n), np.float32))
        for bits in (0, 16, 8):
            traced = jax.jit(lambda x, w, bits=bits: ffi.grouped(x, jnp.asarray(chosen), [w], bits)[0])
            calls[out, n, bits] = partial(traced, x, w)
    seconds: dict[tuple[int, int, int], list[float]] = {key: [] for key in calls}
    floats, bytes_ = [], []
    for i in range(args.rounds + 1):  # the first compiles
        floats.append(peak())
        bytes_.append(peak(int8=True))
        for key, call in calls.items():
            took = cpu_seconds(call)
            seconds[key] += [took] if i else []
    most = statistics.median(floats), statistics.median(bytes_)
    print(f"a core's peak: {most[0] / 1e9:.0f} GFLOP/s of float32, {most[1] / 1e9:.0f} GOP/s of int8")
    for (out, n, bits), spent in seconds.items():
        rate = 2.0 * args.tokens * CHOICES * out * n / statistics.median(spent)
        share = rate / (most[1] if bits == 8 and most[1] else most[0])
        name = f"int{bits}" if bits else "exact"
        print(
            f"{args.tokens} tokens, {n} → {out}, {name:6} {rate / 1e9:7.0f} GOP a CPU second, {share:.0%} of the peak"
        )


if __name__ == "__main__":
    main()

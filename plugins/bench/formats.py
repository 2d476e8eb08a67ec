"""Throughput of every number format: `python -m plugins.bench.formats`.

A `[2816, 2816]` bfloat16 matrix from N(0, 0.02) (the multiple of 128 below gpt-oss's 2880); GB/s of CPU time count the
bfloat16 side, in both directions, beside a memcpy of it; quantizing takes the sums of errors, as a report wants them.
Native kernels are measured with each instruction set of the machine. The reference, which goes value by value, gets a
corner of it. All rows are measured in turn in every round, each beside a memcpy, so that a busy machine slows them
alike; medians are printed. It is not a test: nothing here checks a result.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, Final

import ml_dtypes
import numpy as np

from pipeline.ops import Kernel
from pipeline.tensors.scheme import Scheme
from plugins.kernels.native import library

SHAPE: Final = (2816, 2816)
MEMCPY: Final = ("memcpy", "", "")
CORNER: Final = 128  # rows and columns of what the reference is measured on
_GGML: Final = {"codes_from": "unrounded", "quotient": "reciprocal"}
FORMATS: Final[dict[str, tuple[Scheme, dict[str, Any]]]] = {
    **{f"mx {e}": (Scheme(e, 32, "e8m0"), {}) for e in ("e2m1", "e2m3", "e3m2", "e4m3", "e5m2", "mxint8")},
    "nvfp4": (Scheme("e2m1", 16, "e4m3", second="f32"), {"scale_rule": "amax"}),
    "nf4": (Scheme("nf4", 64, "f32"), {"scale_rule": "amax", "ties": "down"}),
    "nf4, twice": (
        Scheme("nf4", 64, "dynamic8", second="dynamic8"),
        {"scale_rule": "amax", "ties": "down", "codes_from": "unrounded", "quotient": "reciprocal"},
    ),
    "int8 a row": (Scheme("int8", 0, "f32"), {"scale_rule": "amax"}),
    **{f"int{n} / 32": (Scheme(f"int{n}", 32, "f32"), {"scale_rule": "amax"}) for n in (4, 3, 2)},
    "uint4 / 32, zero": (Scheme("uint4", 32, "f32", zero="int"), {"scale_rule": "minmax"}),
    "e4m3 a matrix": (Scheme("e4m3", 0, "f32", 0), {"scale_rule": "amax"}),
    "e4m3 / 128 x 128": (Scheme("e4m3", 128, "f32", 128), {"scale_rule": "amax"}),
    "e5m2 a row": (Scheme("e5m2", 0, "f32"), {"scale_rule": "amax"}),
    "q8_0": (Scheme("int8", 32, "f16"), {"scale_rule": "amax", "ties": "away", **_GGML}),
    "q4_0": (Scheme("int4", 32, "f16"), {"scale_rule": "signed", "ties": "up", **_GGML}),
    "q4_1": (Scheme("uint4", 32, "f16", zero="min_f16"), {"scale_rule": "minmax", "ties": "up", **_GGML}),
}


def rows(ops: list[str], backends: list[str]) -> dict[tuple[str, str, str], Callable[[], Any]]:
    """(op, format, backend) → what is measured; `nbytes` says of how much. What a backend declines is left out."""
    x = (np.random.default_rng(0).standard_normal(SHAPE, np.float32) * np.float32(0.02)).astype(ml_dtypes.bfloat16)
    spare = np.empty_like(x)
    table: dict[tuple[str, str, str], Callable[[], Any]] = {MEMCPY: lambda: np.copyto(spare, x)}
    for op, (name, (scheme, options)), backend in product(ops, FORMATS.items(), backends):
        y = np.ascontiguousarray(x[:CORNER, :CORNER]) if backend == "reference" else x
        given: tuple[Any, ...] = y, scheme
        if op == "dequantize":
            given, options = (Kernel("quantize", ("numpy", "reference"))(y, scheme, **options),), {}
        else:
            options = {**options, "measure": True}
        kernel = Kernel(op, (backend,))
        if kernel.resolve(*given, **options).backend is None:
            continue
        measured = partial(kernel, *given, **options)
        for isa in library.ISAS[: library.isa() + 1] if backend == "native" else ():
            table[op, name, f"{backend} {isa}"] = partial(_forced, isa, measured)
        if backend != "native":
            table[op, name, backend] = measured
    return table


def _forced(isa: str, measured: Callable[[], Any]) -> Any:
    os.environ[library.ISA] = isa
    try:
        return measured()
    finally:
        del os.environ[library.ISA]


def nbytes(backend: str) -> int:
    """bfloat16 bytes that a row is about."""
    return 2 * (CORNER * CORNER if backend == "reference" else SHAPE[0] * SHAPE[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ops", nargs="+", default=["quantize", "dequantize"])
    parser.add_argument("--backends", nargs="+", default=["native", "numpy", "xla", "reference"])
    args = parser.parse_args()
    table = rows(args.ops, args.backends)
    seconds: dict[tuple[str, str, str], list[float]] = {key: [] for key in table}
    for i in range(args.rounds + 1):  # the first round warms up and compiles
        for key in (k for row in table for k in (MEMCPY, row)):
            start = time.process_time()
            table[key]()
            if i:
                seconds[key].append(time.process_time() - start)
    median = {key: statistics.median(s) for key, s in seconds.items()}
    memcpy = nbytes("") / median[MEMCPY]
    print(f"{SHAPE} bfloat16, {nbytes('') / 1e6:.1f} MB, median of {args.rounds}")
    print(f"{'':48}{'GB/s':>8}{'of memcpy':>11}")
    for (op, name, backend), s in sorted(median.items(), key=lambda kv: kv[0][0] != "memcpy"):
        rate = nbytes(backend) / s
        print(f"{op:12}{name:20}{backend:16}{rate / 1e9:8.4f}{rate / memcpy:11.2%}")


if __name__ == "__main__":
    main()

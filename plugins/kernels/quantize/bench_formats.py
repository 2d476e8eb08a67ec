"""Throughput of every number format: `python -m plugins.kernels.quantize.bench_formats`.

A `[2880, 2880]` bfloat16 matrix from N(0, 0.02); GB/s count the bfloat16 side, in both directions, beside a memcpy of
it. All rows are measured in turn in every round, so that a busy machine slows them alike; medians are printed. It is
not a test: nothing here checks a result.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import ml_dtypes
import numpy as np

from pipeline.tensors.scheme import Scheme
from plugins.kernels.dequantize import Dequantize
from plugins.kernels.quantize import Quantize

SHAPE: Final = (2880, 2880)
FORMATS: Final[dict[str, tuple[Scheme, dict[str, Any]]]] = {
    **{f"mx {e}": (Scheme(e, 32, "e8m0"), {}) for e in ("e2m1", "e2m3", "e3m2", "e4m3", "e5m2", "mxint8")},
    "nvfp4": (Scheme("e2m1", 16, "e4m3", second="f32"), {"scale_rule": "amax"}),
    "nf4": (Scheme("nf4", 64, "f32"), {"scale_rule": "amax", "ties": "down"}),
    "int8 a row": (Scheme("int8", 0, "f32"), {"scale_rule": "amax"}),
    "int4 / 32": (Scheme("int4", 32, "f32"), {"scale_rule": "amax"}),
    "uint4 / 32, zero": (Scheme("uint4", 32, "f32", zero="int"), {"scale_rule": "minmax"}),
    "fp8 a matrix": (Scheme("e4m3", 0, "f32", 0), {"scale_rule": "amax"}),
    "q8_0": (Scheme("int8", 32, "f16"), {"scale_rule": "amax", "codes_from": "unrounded", "quotient": "reciprocal"}),
}


def rows(backends: list[str]) -> dict[tuple[str, str, str], Callable[[], Any]]:
    """(op, format, backend) → what is measured."""
    x = (np.random.default_rng(0).standard_normal(SHAPE, np.float32) * np.float32(0.02)).astype(ml_dtypes.bfloat16)
    spare = np.empty_like(x)
    table: dict[tuple[str, str, str], Callable[[], Any]] = {("memcpy", "", ""): lambda: np.copyto(spare, x)}
    for name, (scheme, options) in FORMATS.items():
        packed = Quantize()(x, scheme, **options)
        for backend in backends:
            encode, decode = Quantize((backend,)), Dequantize((backend,))
            table["quantize", name, backend] = lambda e=encode, s=scheme, o=options: e(x, s, **o)  # type: ignore[misc]
            table["dequantize", name, backend] = lambda d=decode, q=packed: d(q)  # type: ignore[misc]
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backends", nargs="+", default=["numpy", "xla"])
    args = parser.parse_args()
    table = rows(args.backends)
    seconds: dict[tuple[str, str, str], list[float]] = {key: [] for key in table}
    for i in range(args.rounds + 1):  # the first round warms up and compiles
        for key, call in table.items():
            start = time.perf_counter()
            call()
            if i:
                seconds[key].append(time.perf_counter() - start)
    median = {key: statistics.median(s) for key, s in seconds.items()}
    nbytes = SHAPE[0] * SHAPE[1] * 2
    memcpy = median["memcpy", "", ""]
    print(f"{SHAPE} bfloat16, {nbytes / 1e6:.1f} MB, median of {args.rounds}")
    print(f"{'':40}{'GB/s':>8}{'of memcpy':>11}")
    for (op, name, backend), s in sorted(median.items(), key=lambda kv: kv[0][0] != "memcpy"):
        print(f"{op:12}{name:20}{backend:8}{nbytes / s / 1e9:8.2f}{memcpy / s:11.1%}")


if __name__ == "__main__":
    main()

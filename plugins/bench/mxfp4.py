"""Throughput of the MXFP4 codec beside the obvious ways to write it: `python -m plugins.bench.mxfp4`.

One gpt-oss-20b expert, `[5760, 2880]` bfloat16 from N(0, 0.02); GB/s count the bfloat16 side, in both directions. All
rows are measured in turn in every round, so that a busy machine slows them alike; medians are printed. It is not a
test: nothing here checks a result.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchao on one core, like the rest

import ml_dtypes
import numpy as np

from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4

SHAPE = (5760, 2880)


def plain_quantize(x: Any) -> QTensor:
    """Floor rule by ml_dtypes, row by row: what one writes first. Whole-array is slower and needs gigabytes."""
    codes, scales = np.empty((len(x), x.shape[1] // 2), np.uint8), np.empty((len(x), x.shape[1] // 32), np.uint8)
    for i, row in enumerate(x):
        blocks = row.astype(np.float32).reshape(-1, 32)
        amax = np.abs(blocks).max(axis=1, keepdims=True)
        exponent = np.clip(np.frexp(amax)[1] - 3, -127, 127)
        c = np.ldexp(blocks, -exponent).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
        codes[i] = (c[:, 0::2] | c[:, 1::2] << 4).reshape(-1)
        scales[i] = (exponent + 127).reshape(-1)
    return QTensor(codes, scales, MXFP4)


def plain_dequantize(q: QTensor) -> Any:
    out = np.empty(q.shape, ml_dtypes.bfloat16)
    for i, (codes, scales) in enumerate(zip(q.codes, q.scales, strict=True)):
        c = np.stack([codes & 15, codes >> 4], axis=-1).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
        out[i] = np.ldexp(c.reshape(-1, 32), scales[:, None].astype(np.int32) - 127).reshape(-1)
    return out


def threaded(call: Callable[[Any], Any], parts: list[Any], pool: ThreadPoolExecutor) -> Callable[[], Any]:
    return lambda: list(pool.map(call, parts))


def rows(pool: ThreadPoolExecutor) -> tuple[dict[str, Callable[[], Any]], list[str]]:
    """What is measured, by name, and remarks about what is not."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(SHAPE, np.float32) * np.float32(0.02)).astype(ml_dtypes.bfloat16)
    transposed = np.ascontiguousarray(x.T).T
    spare = np.empty_like(x)
    quantize, dequantize = Kernel("quantize", ("numpy", "reference")), Kernel("dequantize", ("numpy",))
    q = quantize(x, MXFP4)
    halves = [x[: SHAPE[0] // 2], x[SHAPE[0] // 2 :]]
    q_halves = [quantize(h, MXFP4) for h in halves]
    table: dict[str, Callable[[], Any]] = {
        "memcpy": lambda: np.copyto(spare, x),
        "quantize: ml_dtypes loop": lambda: plain_quantize(x),
        "quantize: numpy": lambda: quantize(x, MXFP4),
        "quantize: numpy, measured": lambda: quantize(x, MXFP4, measure=True),
        "quantize: numpy, transposed view": lambda: quantize(transposed, MXFP4),
        "quantize: numpy, 2 threads": threaded(lambda h: quantize(h, MXFP4), halves, pool),
        "quantize: numpy, measured, 2 threads": threaded(lambda h: quantize(h, MXFP4, measure=True), halves, pool),
        "dequantize: ml_dtypes loop": lambda: plain_dequantize(q),
        "dequantize: numpy": lambda: dequantize(q),
        "dequantize: numpy, 2 threads": threaded(dequantize, q_halves, pool),
    }
    try:
        import torch
        from torchao.prototype.mx_formats import mx_tensor
    except ImportError as why:
        return table, [f"torchao is not measured: {why}"]
    torch.set_num_threads(1)
    t = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    table["quantize: torchao to_mx"] = lambda: mx_tensor.to_mx(t, torch.float4_e2m1fn_x2, 32)
    scale, data = mx_tensor.to_mx(t, torch.float4_e2m1fn_x2, 32)
    table["dequantize: torchao to_dtype"] = lambda: mx_tensor.to_dtype(
        data, scale, torch.float4_e2m1fn_x2, 32, torch.bfloat16
    )
    return table, [f"torch {torch.__version__}, one thread"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with ThreadPoolExecutor(2) as pool:
        table, remarks = rows(pool)
        seconds: dict[str, list[float]] = {name: [] for name in table}
        for _ in range(rounds):
            for name, call in table.items():
                # The first calls warm caches and let the kernel spread woken threads over the cores.
                for i in range(4):
                    start = time.perf_counter()
                    call()
                    if i >= 2:
                        seconds[name].append(time.perf_counter() - start)
    nbytes = SHAPE[0] * SHAPE[1] * 2
    median = {name: statistics.median(s) for name, s in seconds.items()}
    print(f"{SHAPE} bfloat16, {nbytes / 1e6:.1f} MB, median of {2 * rounds}")
    print(f"{'':38}{'GB/s':>8}{'x plain':>9}{'of memcpy':>11}")
    for name, s in sorted(
        median.items(), key=lambda kv: (kv[0].split(":")[0] != "memcpy", kv[0].split(":")[0], -kv[1])
    ):
        plain = median.get(f"{name.split(':')[0]}: ml_dtypes loop")
        ratio = f"{plain / s:9.1f}" if plain else " " * 9
        print(f"{name:38}{nbytes / s / 1e9:8.2f}{ratio}{median['memcpy'] / s:10.0%}")
    for remark in remarks:
        print(remark)


if __name__ == "__main__":
    main()

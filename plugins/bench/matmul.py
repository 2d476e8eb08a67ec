"""Speed of matmul on packed weights: `python -m plugins.bench.matmul`.

Shapes of gpt-oss-20b's experts and attention and of SmolLM2-135M, with 1, 8 and 64 rows of x; in jnp and in C++, beside
plain weights in jnp and in torch, and beside reading as many bytes as plain bfloat16 weights have (a sum of 64-bit
integers, which is what memory gives). It is not a test: nothing here checks a result.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.ops import Kernel
from pipeline.tensors.scheme import MXFP4, Scheme
from plugins.bench.timing import has_torch, in_turn, packed, report

SHAPES = {
    "gpt-oss-20b gate_up": (5760, 2880),
    "gpt-oss-20b qkv": (5120, 2880),
    "SmolLM2-135M up": (1536, 576),
    "SmolLM2-135M head": (49152, 576),
}
SCHEMES = {
    "mxfp4": MXFP4,
    "mxfp8": Scheme("e4m3", 32, "e8m0"),
    "mxfp6": Scheme("e2m3", 32, "e8m0"),
    "mxint8": Scheme("mxint8", 32, "e8m0"),
    "fp8 in tiles": Scheme("e4m3", 128, "f32", block_rows=128),
    "int8 a row": Scheme("int8", 0, "f32"),
    "q8_0": Scheme("int8", 32, "f16"),
    "q4_1": Scheme("uint4", 32, "f16", zero="min_f16"),
    "int2 / 64": Scheme("int2", 64, "f32"),
    "int4 / 32": Scheme("int4", 32, "f16"),
    "nf4": Scheme("nf4", 64, "f32"),
    "nvfp4": Scheme("e2m1", 16, "e4m3", second="f32"),
}


def calls(shape: tuple[int, int], rows: int) -> tuple[dict[str, Callable[[], Any]], dict[str, float]]:
    """What is measured, and the bytes of weights each reads."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((rows, shape[1]), np.float32))
    w = jnp.asarray(rng.standard_normal(shape, np.float32))
    op, native = jax.jit(Kernel("matmul", ("xla",))), Kernel("matmul", ("native",))
    table: dict[str, Callable[[], Any]] = {}
    nbytes: dict[str, float] = {}

    def add(name: str, of: float, call: Callable[[], Any]) -> None:
        table[name], nbytes[name] = call, of

    def add_op(name: str, of: float, x: Any, w: Any) -> None:
        add(name, of, partial(op, x, w))
        if native.resolve(x, w).backend:
            add(f"{name}, native", of, partial(jax.jit(native), x, w))

    half_x, half_w = x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)
    words = np.zeros(half_w.nbytes // 8, np.int64)
    add("read as many bytes as bf16", half_w.nbytes, words.sum)
    add_op("matmul bf16", half_w.nbytes, half_x, half_w)
    add_op("matmul f32", w.nbytes, x, w)
    plain = jax.jit(lambda x, w: x @ w.T)
    add("jnp bf16", half_w.nbytes, partial(plain, half_x, half_w))
    add("jnp f32", w.nbytes, partial(plain, x, w))
    if has_torch():
        import torch

        tx, tw = torch.from_numpy(np.array(x)), torch.from_numpy(np.array(w))
        add("torch bf16", half_w.nbytes, partial(torch.nn.functional.linear, tx.bfloat16(), tw.bfloat16()))
        add("torch f32", w.nbytes, partial(torch.nn.functional.linear, tx, tw))
    for name, scheme in SCHEMES.items():
        q = packed(scheme, shape)
        add_op(f"matmul bf16 · {name}", q.nbytes, half_x, q)
        add_op(f"matmul f32 · {name}", q.nbytes, x, q)
    return table, nbytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64])
    args = parser.parse_args()
    for name, shape in SHAPES.items():
        for rows in args.rows:
            table, nbytes = calls(shape, rows)
            title = f"{name}: [{rows}, {shape[1]}] × {list(shape)}, median of {args.rounds}"
            report(title, in_turn(table, args.rounds), nbytes, 2.0 * rows * shape[0] * shape[1], "matmul bf16")


if __name__ == "__main__":
    main()

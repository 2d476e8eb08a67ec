"""Speed of attention: `python -m plugins.bench.attention`.

Decoding one token with a full cache, and a prompt of 512, in the shapes of gpt-oss-20b (64 query and 8 key heads of 64,
with sinks) and SmolLM2-135M (9 and 3 of 64), bfloat16; beside torch's scaled_dot_product_attention, without sinks.
GB/s count keys and values once. It is not a test: nothing here checks a result.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.ops import Kernel
from plugins.bench.timing import has_torch, in_turn, report

xla, native = (Kernel("attention", (name,)) for name in ("xla", "native"))

HEADS = {"gpt-oss-20b": (64, 8, 64), "SmolLM2-135M": (9, 3, 64)}
LENGTHS = ((1, 1024), (1, 4096), (512, 512))


def calls(heads: tuple[int, int, int], queries: int, slots: int) -> dict[str, Callable[[], Any]]:
    """What is measured."""
    many, key_heads, dims = heads
    rng = np.random.default_rng(0)
    shapes = (1, queries, many, dims), (1, slots, key_heads, dims), (1, slots, key_heads, dims)
    q, k, v = (jnp.asarray(rng.standard_normal(s, np.float32)).astype(jnp.bfloat16) for s in shapes)
    slot = jnp.arange(slots, dtype=jnp.int32)[None]
    at = slot[:, slots - queries :]
    options = {"scale": dims**-0.5, "sinks": jnp.zeros(many) if many == 64 else None}
    table: dict[str, Callable[[], Any]] = {
        f"{name} bf16{said}": partial(jax.jit(partial(kernel, **options, **more)), q, k, v, at, slot)
        for name, kernel in {"xla": xla, "native": native}.items()
        for said, more in {"": {}, ", window 128": {"window": 128}}.items()
    }
    if has_torch():
        import torch

        arrays = (torch.from_numpy(np.array(a.astype(jnp.float32))).bfloat16().transpose(1, 2) for a in (q, k, v))
        sdpa = torch.nn.functional.scaled_dot_product_attention
        table["torch bf16"] = partial(sdpa, *arrays, is_causal=queries > 1, enable_gqa=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    for name, heads in HEADS.items():
        for queries, slots in LENGTHS:
            table = calls(heads, queries, slots)
            nbytes = dict.fromkeys(table, 2.0 * 2 * slots * heads[1] * heads[2])
            title = f"{name}: {queries} queries, {slots} slots, median of {args.rounds}"
            report(
                title,
                in_turn(table, args.rounds),
                nbytes,
                4.0 * queries * slots * heads[0] * heads[2],
                "xla bf16",
            )


if __name__ == "__main__":
    main()

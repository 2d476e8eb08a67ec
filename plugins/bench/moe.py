"""Speed of one gpt-oss-20b layer of experts: `python -m plugins.bench.moe`.

32 experts of 2880 → 5760 → 2880, 4 of them a token, from MXFP4 (0.42 GB), in jnp and in C++; with 1, 16 and 128
tokens, beside two things that need the experts in bfloat16 (1.6 GB): the same op on them, and torch, expert by expert
as transformers does it.
Extra memory: 1.6 GB. It is not a test: nothing here checks a result.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.ops import Kernel
from pipeline.tensors.scheme import MXFP4
from plugins.bench.timing import has_torch, in_turn, packed, report

EXPERTS, CHOICES, HIDDEN, INTER = 32, 4, 2880, 2880


def activation(both: Any) -> Any:
    """gpt-oss's clamped SwiGLU."""
    gate, up = both[..., ::2], both[..., 1::2]
    gate, up = jnp.minimum(gate, 7), jnp.clip(up, -7, 7)
    return gate * jax.nn.sigmoid(1.702 * gate) * (up + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 16, 128])
    args = parser.parse_args()
    ops = {name: Kernel("moe", (name,)) for name in ("xla", "native")}
    shapes = (EXPERTS, 2 * INTER, HIDDEN), (EXPERTS, HIDDEN, INTER)
    quantized = [packed(MXFP4, s) for s in shapes]
    rng = np.random.default_rng(0)
    some = rng.standard_normal(1 << 16, np.float32) / 32
    plain = [jnp.asarray(np.resize(some, s)).astype(jnp.bfloat16) for s in shapes]
    for tokens in args.tokens:
        x = jnp.asarray(rng.standard_normal((tokens, HIDDEN), np.float32)).astype(jnp.bfloat16)
        chosen = np.stack([rng.permutation(EXPERTS)[:CHOICES] for _ in range(tokens)]).astype(np.int32)
        weights = jnp.full((tokens, CHOICES), 0.25, jnp.float32)
        share = len(np.unique(chosen)) / EXPERTS  # of the experts, which are read
        table: dict[str, Callable[[], Any]] = {}
        nbytes: dict[str, float] = {}
        for name, (w_in, w_out) in (("moe bf16", plain), ("moe bf16 · mxfp4", quantized)):
            given = (x, jnp.asarray(chosen), weights, (w_in,), (None,), w_out, None)
            for backend, op in ops.items():
                if op.resolve(*given, activation=activation).backend:
                    at = name if backend == "xla" else f"{name}, {backend}"
                    table[at] = partial(jax.jit(partial(op, activation=activation)), *given)
                    nbytes[at] = (w_in.nbytes + w_out.nbytes) * share
        if has_torch():
            table["torch bf16, expert by expert"] = in_torch(x, chosen, plain)
            nbytes["torch bf16, expert by expert"] = nbytes["moe bf16"]
        flops = 2.0 * tokens * CHOICES * 3 * HIDDEN * INTER
        title = f"gpt-oss-20b experts, {tokens} tokens, {share * EXPERTS:.0f} experts read, median of {args.rounds}"
        report(title, in_turn(table, args.rounds), nbytes, flops, "moe bf16")


def in_torch(x: Any, chosen: Any, plain: Any) -> Callable[[], Any]:
    """The loop over the experts chosen, weights of 1/4."""
    import torch

    tx = torch.from_numpy(np.array(x.astype(jnp.float32))).bfloat16()
    w_in, w_out = (torch.from_numpy(np.asarray(w).view(np.int16)).view(torch.bfloat16) for w in plain)
    where = {int(e): torch.from_numpy(np.nonzero(chosen == e)[0]) for e in np.unique(chosen)}

    def run() -> Any:
        out = torch.zeros_like(tx)
        for e, rows in where.items():
            both = tx[rows] @ w_in[e].T
            gate, up = both[..., ::2].clamp(max=7), both[..., 1::2].clamp(-7, 7)
            hidden = gate * torch.sigmoid(1.702 * gate) * (up + 1)
            out.index_add_(0, rows, hidden @ w_out[e].T, alpha=0.25)
        return out

    return run


if __name__ == "__main__":
    main()

"""A step of training the embedded model beside transformers and torch: `python -m plugins.bench.train`.

Both train its config from random weights in float32: AdamW, clipping by the global norm, rows of random tokens. Each
runs in a process of its own, in turn, and tells its median step; the table has the best of the turns. Ours has huge
pages, as its commands have. The limit is what the matrices and attention's visible pairs take (forward once, backward
twice) at the rate that this machine multiplies and adds at most; what is computed again on the way back counts as
nothing. It is not a test: nothing here checks a result.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import huge_pages
from plugins.bench import machine
from plugins.bench.contenders import run
from plugins.bench.timing import has_torch
from plugins.models.gpt_oss.family import GptOss

FOLDER = Path(__file__).parents[1] / "models" / "gpt_oss" / "tiny"
NATIVE = ("matmul", "moe", "attention", "rope")
AS_RUN = {huge_pages.NAME: huge_pages.TUNABLE}  # what a run of ours begins with


def config() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "config.json").read_text())
    return found


def operations(rows: int, length: int) -> float:
    """float32 operations of a step: forward 2 for each weight that a token meets, and 4 for each dim of a head and pair
    of tokens that see each other; and twice that backward."""
    c = config()
    share = c["num_experts_per_tok"] / c["num_local_experts"]
    weights: float = sum(
        math.prod(p.shape) * (share if p.axes[0] == "experts" else 1)
        for p in GptOss().parameters(c)
        if len(p.shape) > 1 and not p.name.endswith(("bias", "embed_tokens.weight"))
    )
    at = np.arange(1, length + 1)
    seen = {"full_attention": at.sum(), "sliding_attention": np.minimum(at, c["sliding_window"]).sum()}
    pairs = float(sum(seen[kind] for kind in c["layer_types"]))
    heads = float(c["num_attention_heads"] * c["head_dim"])
    return 3 * rows * (2 * weights * length + 4 * heads * pairs)


def tokens(rows: int, length: int) -> Any:
    return np.random.default_rng(0).integers(4, config()["vocab_size"], (rows, length)).astype(np.int32)


def ours(rows: int, length: int, backends: str) -> Callable[[], Any]:
    import jax

    from pipeline.ops import Kernel
    from pipeline.tensors.spec import TensorSpec
    from plugins.models.common.ops import Ops
    from plugins.models.common.weights import Weights
    from plugins.train.objectives import CausalLM
    from plugins.train.optimizers import AdamW
    from plugins.train.step import make_step

    native = NATIVE if backends == "native" else ()
    names = (f.name for f in fields(Ops))
    ops = Ops(*(Kernel(op, ("native", "xla") if op in native else ("xla",)) for op in names))
    table = GptOss().parameters(config())
    weights = Weights({p.name: TensorSpec(p.shape, "F32") for p in table})
    step = make_step(GptOss().build(config(), weights, ops, "float32"), CausalLM(), AdamW(), steps=1000)
    rng = np.random.default_rng(0)
    begin = {p.name: 0.02 * rng.standard_normal(p.shape, np.float32) + p.name.endswith("norm.weight") for p in table}
    ids = tokens(rows, length)[None]
    at = np.broadcast_to(np.arange(length, dtype=np.int32), ids.shape)
    batch = {"tokens": ids, "targets": np.roll(ids, -1, -1), "weights": (at < length - 1).astype(np.float32)}
    batch |= {"positions": at, "segments": np.ones_like(at)}
    state, key = step.init(begin), jax.random.key(0)

    def call() -> None:
        nonlocal state
        state, seen = step(state, batch, key)
        float(seen["loss"])

    return call


def theirs(rows: int, length: int, experts: str) -> Callable[[], Any]:
    import torch
    import transformers

    settings = transformers.GptOssConfig.from_pretrained(FOLDER)
    settings._attn_implementation, settings._experts_implementation = "eager", experts
    model = transformers.GptOssForCausalLM(settings).float().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    ids = torch.tensor(tokens(rows, length), dtype=torch.int64)

    def call() -> None:
        loss = model(ids, labels=ids, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()

    return call


WHO: dict[str, tuple[Callable[..., Callable[[], Any]], str]] = {
    "ours, native": (ours, "native"), "ours, xla": (ours, "xla"),
    "torch, grouped_mm": (theirs, "grouped_mm"), "torch, eager": (theirs, "eager"),
}  # fmt: skip


def answer(who: str, rows: int, length: int, steps: int) -> None:
    """What runs in a process: its last line has the seconds of every step, the first of them with all compiling."""
    make, how = WHO[who]
    call, took = make(rows, length, how), []
    for _ in range(steps + 2):
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    print(json.dumps(took))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    print(machine.headline(machine.describe()))
    limit = operations(args.rows, args.length) / machine.multiply_add_rate(args.threads)
    some = [who for who in WHO if who.startswith("ours") or has_torch()]
    best = dict.fromkeys(some, (math.inf, 0.0, 0))
    for _ in range(args.turns):
        for who in some:
            code = "import sys; from plugins.bench.train import answer; answer(sys.argv[1], *map(int, sys.argv[2:]))"
            command = [sys.executable, "-c", code, who, args.rows, args.length, args.steps]
            output, peak = run(command, args.threads, **(AS_RUN if who.startswith("ours") else {}))
            first, _, *rest = json.loads(output.splitlines()[-1])
            best[who] = min(best[who], (statistics.median(rest), first, peak))
    print(f"\na step of {args.rows} × {args.length} tokens, float32, limit {limit * 1e3:.0f} ms")
    print(f"{'':20}{'ms':>8}{'tokens/s':>10}{'of limit':>10}{'first, s':>10}{'peak, MiB':>11}")
    for who, (seconds, first, peak) in best.items():
        rate = args.rows * args.length / seconds
        print(f"{who:20}{seconds * 1e3:8.0f}{rate:10.0f}{limit / seconds:10.0%}{first:10.1f}{peak >> 20:11}")
    if not has_torch():
        print("torch is not installed: its rows are left out")


if __name__ == "__main__":
    main()

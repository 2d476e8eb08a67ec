"""What meshes cost on the cores of one machine: `python -m plugins.bench.mesh`.

The embedded gpt-oss, in bf16, on one make-believe device of the CPU, and on 2 and 4 that share the same cores: what is
slower than on one is the price of dividing, not of slow links. Tokens a second of a batch's prompts and of its new
tokens; what a device sends in a step, by the plan, and how many collectives that takes; and the temporaries that the
plan says beside those that XLA says it takes. It is not a test: nothing here checks a result.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.bench.others import Others
from pipeline.engine import Usage, Windows, scoring
from pipeline.mesh import SINGLE, Mesh, Step
from pipeline.units import show_bytes
from plugins.bench import written
from plugins.bench.machine import describe, headline

DEVICES = 4
EMBEDDED = Path(__file__).parents[1] / "models" / "gpt_oss" / "tiny"
STORED = ("experts", "vocab", "mlp", "heads", "kv_heads", "embed")
TENSOR = {"heads": "tensor", "kv_heads": "tensor", "mlp": "tensor", "vocab": "tensor"}
MESHES = {
    "single": SINGLE,
    **{f"data={n}": Mesh({"data": n}, {"batch": "data"}, replicated_most=1) for n in (2, 4)},
    **{f"fsdp={n}": Mesh({"fsdp": n}, {"batch": "fsdp"}, {"fsdp": STORED}) for n in (2, 4)},
    "tensor=2": Mesh({"tensor": 2}, TENSOR, replicated_most=1),
    **{
        f"expert={n}": Mesh({"expert": n}, {"experts": "expert", "vocab": "expert"}, {"expert": STORED[2:]})
        for n in (2, 4)
    },
    "fsdp=2 tensor=2": Mesh({"fsdp": 2, "tensor": 2}, {"batch": "fsdp", **TENSOR}, {"fsdp": STORED}),
}
WINDOW = 256


def bench(model: Any, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each mesh. They take turns, so that a busy machine slows all alike."""
    import jax

    from plugins.engine.generate import generate
    from plugins.engine.options import Sampling
    from plugins.engine.start import start

    engine, checkpoint = model._engine, model._checkpoint
    ids = [[(31 * i + 7 * j) % model.runtime.vocab for j in range(args.prompt)] for i in range(args.rows)]
    on, seconds = {}, {name: ([], []) for name in MESHES}  # type: ignore[var-annotated]
    for name, mesh in MESHES.items():
        on[name] = start(replace(engine, mesh=mesh), checkpoint, jax.devices()[: mesh.size])
    for turn in range(args.rounds + 1):  # the first compiles
        for name, one in on.items():
            taken = generate(one.runtime, ids, Sampling(max_tokens=args.new))[1]
            for found, s in zip(seconds[name], (taken.prefill, taken.decode), strict=True):
                found += [s] if turn else []
    for name, one in on.items():
        one.score([i for row in ids for i in row], Windows(WINDOW, batch=args.rows), keep=None, against=None)
        prefill, decode = map(statistics.median, seconds[name])
        yield {
            "mesh": name,
            "devices": MESHES[name].size,
            "prefill_rate": args.rows * args.prompt / prefill,
            "decode_rate": args.rows * (args.new - 1) / decode,
            "weights": one.facts["device_nbytes"],
            **planned(replace(engine, mesh=MESHES[name]), checkpoint, args),
            "measured": {name: measured(one.runtime, name) for name in ("prefill", "score")},
        }


def planned(engine: Any, checkpoint: Any, args: argparse.Namespace) -> dict[str, Any]:
    """What the plan says of the same: steps, temporaries, and how long it takes to say so."""
    began = time.process_time()
    prompts = engine.plan(
        checkpoint, text=False, usage=Usage(args.rows, args.prompt + args.new, generates=True, tokens=args.new)
    )
    spent = time.process_time() - began
    scored = engine.plan(
        checkpoint, text=False, usage=scoring([args.rows * args.prompt], Windows(WINDOW, batch=args.rows))
    )
    return {
        "sent": {step.name: sum(e.nbytes for e in step.exchanges) for step in prompts.steps},
        "collectives": {step.name: count(step) for step in prompts.steps},
        "planned": {"prefill": prompts.temporary_nbytes, "score": scored.temporary_nbytes},
        "plan_s": spent,
    }


def count(step: Step) -> int:
    return sum(e.count for e in step.exchanges)


def measured(runtime: Any, name: str) -> int:
    """Bytes of temporaries of the program that takes most of those of a name."""
    found = [program for key, program in runtime._programs.items() if key[0] == name]
    return max(int(program.memory_analysis().temp_size_in_bytes) for program in found)


def show(rows: list[dict[str, Any]], args: argparse.Namespace, others: float) -> None:
    from rich.console import Console
    from rich.table import Table

    busy = f", others on {others:.1f} cores" if others > 0.1 else ""
    title = f"embedded gpt-oss, {args.rows} rows of {args.prompt} tokens, {args.new} new, median of {args.rounds}{busy}"
    table = Table(title=title, title_justify="left")
    heads = (
        "mesh", "devices", "prefill\ntokens/s", "× one\ndevice", "decode\ntokens/s", "× one\ndevice",
        "weights\neach", "sends in a prompt\n(collectives)", "sends in a step\n(collectives)",
        "temporaries, prompt\nplanned / measured", "temporaries, score\nplanned / measured", "plan\nms",
    )  # fmt: skip
    for head in heads:
        table.add_column(head, justify="left" if head == "mesh" else "right", no_wrap=True)
    one = rows[0]
    for r in rows:
        sends = [f"{show_bytes(r['sent'].get(s, 0))} ({r['collectives'].get(s, 0)})" for s in ("prefill", "decode")]
        table.add_row(
            r["mesh"], str(r["devices"]), f"{r['prefill_rate']:.0f}", f"{r['prefill_rate'] / one['prefill_rate']:.2f}",
            f"{r['decode_rate']:.0f}", f"{r['decode_rate'] / one['decode_rate']:.2f}", show_bytes(r["weights"]), *sends,
            *(f"{show_bytes(r['planned'][k]) if r['devices'] > 1 else '–'} / {show_bytes(r['measured'][k])}"
              for k in ("prefill", "score")),
            f"{1e3 * r['plan_s']:.0f}",
        )  # fmt: skip
    Console(width=190).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4, help="sequences at once; every mesh divides 4")
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("outputs"), help="where bench_mesh.json goes")
    args = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"  # before JAX is imported
    import pipeline

    told = describe()
    print(headline(told))
    with Others() as others:
        rows = list(bench(pipeline.load_model(EMBEDDED, overrides=["engine.device=cpu"]), args))
    show(rows, args, others.cores)
    written.write(args.out, "mesh", told, others=others.cores, rows=rows)


if __name__ == "__main__":
    main()

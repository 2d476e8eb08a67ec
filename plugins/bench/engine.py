"""Speed of whole models beside llama.cpp, ik_llama.cpp and transformers: `python -m plugins.bench.engine`.

SmolLM2-135M, the embedded gpt-oss, and four layers of gpt-oss-20b's shapes (`--models gpt-oss-20b`: all of them, 26 GB
of disk and 14 of memory): a prompt from nothing, and new tokens from nothing, with the same weights. Every contender
runs in a process of its own, contenders take turns, and a figure is the median over all turns. Beside it stands its
share of what the machine can do at most: reading all weights once a token, and multiplying and adding without a pause.
Where others compute too, "others" says on how many cores; CPU seconds then say more than time.

Peers are left out where `make peers` has not built them, transformers where it is not installed, SmolLM2 where
`make models` has not got its weights. It is not a test: nothing here checks a result.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.backends import backends_of
from pipeline.planning.rates import cores
from plugins.bench import checkpoints, machine, written
from plugins.bench.agreement import agreement
from plugins.bench.contenders import Contender, Task, Turn, turn
from plugins.bench.peers import LOGITS, PEERS, SOURCES

XLA, BF16 = "kernels=xla", "engine.dtype=bf16"


def _coarse(backend: str) -> tuple[str, ...]:
    """A backend that is not exact, for the products that it takes."""
    return tuple(f"kernels.{op}=[{backend},native,xla]" for op in ("matmul", "moe"))


def _gpt_oss(form: str) -> dict[str, Contender]:
    return {
        form: Contender("ours", form),
        f"{form}, activations bf16": Contender("ours", form, (BF16,)),
        f"{form}, native_int16": Contender("ours", form, _coarse("native_int16")),
        f"{form}, native_int8": Contender("ours", form, _coarse("native_int8")),
        f"{form}, xla": Contender("ours", form, (XLA,)),
        f"{form}, llama.cpp": Contender("llama.cpp", form),
        f"{form}, ik_llama.cpp": Contender("ik_llama.cpp", form),
    }


CASES: dict[str, tuple[int, int, dict[str, Contender]]] = {  # tokens of prompt, new ones, and who
    "gpt-oss, embedded": (
        256,
        64,
        {
            "bf16": Contender("ours", "bf16"),
            "mxfp4": Contender("ours", "mxfp4"),
            "mxfp4, xla": Contender("ours", "mxfp4", (XLA,)),
            "bf16, transformers": Contender("transformers", "bf16", ("bfloat16",)),
            "fp32, transformers": Contender("transformers", "bf16", ("float32",)),
        },
    ),
    "SmolLM2-135M": (
        512,
        64,
        {
            "bf16": Contender("ours", "bf16"),
            "bf16, activations bf16": Contender("ours", "bf16", (BF16,)),
            "bf16, xla": Contender("ours", "bf16", (XLA,)),
            "bf16, llama.cpp": Contender("llama.cpp", "bf16 GGUF"),
            "bf16, ik_llama.cpp": Contender("ik_llama.cpp", "bf16 GGUF"),
            "bf16, transformers": Contender("transformers", "bf16", ("bfloat16",)),
            "Q8_0": Contender("ours", "Q8_0"),
            "Q8_0, native_int8": Contender("ours", "Q8_0", _coarse("native_int8")),
            "Q8_0, xla": Contender("ours", "Q8_0", (XLA,)),
            "Q8_0, llama.cpp": Contender("llama.cpp", "Q8_0"),
            "Q8_0, ik_llama.cpp": Contender("ik_llama.cpp", "Q8_0"),
            "Q4_0": Contender("ours", "Q4_0"),
            "Q4_0, llama.cpp": Contender("llama.cpp", "Q4_0"),
            "Q4_0, ik_llama.cpp": Contender("ik_llama.cpp", "Q4_0"),
            "Q4_K_M": Contender("ours", "Q4_K_M"),
            "Q4_K_M, llama.cpp": Contender("llama.cpp", "Q4_K_M"),
            "Q4_K_M, ik_llama.cpp": Contender("ik_llama.cpp", "Q4_K_M"),
            "int8": Contender("ours", "int8"),
            "int4": Contender("ours", "int4"),
        },
    ),
    "gpt-oss-20b, 4 layers": (512, 64, _gpt_oss("Q8_0") | _gpt_oss("bf16")),
    "gpt-oss-20b": (128, 64, {name: c for name, c in _gpt_oss("Q8_0").items() if XLA not in c.settings}),
}
USUAL = [name for name in CASES if name != "gpt-oss-20b"]


def contenders(model: str, only: list[str] | None) -> dict[str, Contender]:
    """Those of a model that are here, and whose names have one of `only` in them."""
    known = set(backends_of("matmul"))
    found = {}
    for name, c in CASES[model][2].items():
        if only and not any(part in name for part in only):
            continue
        asked = {b for s in c.settings for b in ("native_int16", "native_int8") if b in s}
        there = {"ours": asked <= known, "transformers": find_spec("transformers") is not None}
        if there[c.who] if c.who in there else PEERS[c.who].bench.is_file():
            found[name] = c
    return found


def bench(model: str, sources: dict[str, Path], threads: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each contender: medians over all turns."""
    prompt, new, _ = CASES[model]
    task = Task(prompt, new, threads, args.repeats, args.programs)
    there = contenders(model, args.only)
    seen: dict[str, list[Turn]] = {name: [] for name in there}
    for _ in range(args.rounds):
        for name, contender in there.items():
            seen[name].append(turn(contender, sources[contender.form], task))
    works = {(c.form.removesuffix(" GGUF")): (t.read, t.ops) for n, c in there.items() for t in seen[n][:1] if t.read}
    return [
        row(model, name, there[name], task, found, *works.get(there[name].form.removesuffix(" GGUF"), (0.0, 0.0)))
        for name, found in seen.items()
    ]


def agreements(
    model: str, sources: dict[str, Path], args: argparse.Namespace, folder: Path
) -> dict[str, dict[str, float]]:
    """By form: whether llama.cpp runs the same model as ours; said."""
    found = {}
    for name, c in contenders(model, args.only).items():
        if c.who == "llama.cpp" and LOGITS.is_file():
            a = agreement(sources[c.form], folder)
            apart = f"logits {a['apart']:.2%} of their spread apart, the same token after {a['same']:.0%}"
            print(f"{model}, {name} and we: {apart}")
            found[c.form] = a
    return found


def row(
    model: str, name: str, contender: Contender, task: Task, turns: list[Turn], read: float, ops: float
) -> dict[str, Any]:
    def median(seconds: Iterable[float]) -> float:
        return statistics.median([*seconds] or [0.0])

    return {
        "model": model, "name": name, **asdict(contender), **asdict(task), "turns": [asdict(t) for t in turns],
        "prefill_rate": task.prompt / median(s for t in turns for s in t.prefill),
        "decode_rate": task.new / median(s for t in turns for s in t.decode),
        "best_prefill_rate": task.prompt / min(s for t in turns for s in t.prefill),
        "best_decode_rate": task.new / min(s for t in turns for s in t.decode),
        "cpu_ms": 1e3 * median(s for t in turns for s in t.cpu) / task.new, "read": read, "ops": ops,
        "outside_ms": 1e3 * median(t.outside for t in turns), "calls": median(t.calls for t in turns),
        "load": median(t.load for t in turns), "compile": median(t.compile for t in turns),
        "peak": median(t.peak for t in turns), "others": median(t.others for t in turns),
    }  # fmt: skip


def show(model: str, rows: list[dict[str, Any]], limits: dict[str, float], args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    task = rows[0]
    how = f"{args.rounds} processes of {args.repeats}" + (
        ", others at work" if any(r["others"] > 0.1 for r in rows) else ""
    )
    tokens = f"{task['prompt']} tokens of prompt, {task['new']} new"
    title = f"{model}: {tokens}, {task['threads']} threads, median (best) of {how}"
    table = Table(title=title, title_justify="left")
    heads = (
        "", "prefill\ntokens/s", "× llama\n.cpp", "of\nFMA", "decode\ntokens/s", "× llama\n.cpp", "of\nreading",
        "CPU ms\na token", "outside\nms (calls)", "MB read\na token", "peak\nMB", "load\ns", "compile\ns",
        "others\ncores",
    )  # fmt: skip
    for head in heads:
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    peers = {form(r): r for r in rows if r["who"] == "llama.cpp"}
    for r in rows:
        peer = peers.get(form(r))
        table.add_row(
            r["name"], f"{r['prefill_rate']:.0f} ({r['best_prefill_rate']:.0f})", ratio(r, peer, "prefill_rate"),
            f"{r['prefill_rate'] * r['ops'] / limits['multiply_add']:.0%}",
            f"{r['decode_rate']:.1f} ({r['best_decode_rate']:.1f})", ratio(r, peer, "decode_rate"),
            f"{r['decode_rate'] * r['read'] / limits['read']:.0%}", f"{r['cpu_ms']:.1f}" if r["cpu_ms"] else "–",
            f"{r['outside_ms']:.1f} ({r['calls']:.0f})" if r["calls"] else "–",
            f"{r['read'] / 1e6:.1f}", f"{r['peak'] / 1e6:.0f}", f"{r['load']:.1f}" if r["load"] else "–",
            f"{r['compile']:.1f}" if r["compile"] else "–", f"{r['others']:.1f}",
        )  # fmt: skip
    console = Console(width=170)
    console.print(table)
    console.print("outside: of a token, in which no native kernel ran (and how many calls of those it takes)")
    read, multiply_add = limits["read"] / 1e9, limits["multiply_add"] / 1e9
    console.print(
        f"{task['threads']} threads read {read:.1f} GB/s, multiply and add {multiply_add:.0f} GFLOP/s (float32)"
    )


def form(row: dict[str, Any]) -> str:
    """What a row is compared within."""
    found: str = row["form"]
    return found.removesuffix(" GGUF")


def ratio(row: dict[str, Any], peer: dict[str, Any] | None, key: str) -> str:
    return f"{row[key] / peer[key]:.2f}" if peer else "–"


def better(a: dict[str, float], b: dict[str, float]) -> dict[str, float]:
    return {key: max(a[key], b[key]) for key in a}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(CASES), default=USUAL, help=f"default: {', '.join(USUAL)}")
    parser.add_argument("--only", nargs="+", metavar="PART", help="contenders whose names have one of these in them")
    parser.add_argument("--threads", type=int, nargs="+", default=[cores()], help="default: one a core")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each contender")
    parser.add_argument("--repeats", type=int, default=3, help="texts in each process, after one to warm up")
    parser.add_argument("--folder", type=Path, help="where checkpoints are kept for the next time (default: temporary)")
    parser.add_argument("--weights", type=Path, default=Path(os.environ.get("WEIGHTMILL_MODELS", ".models")))
    parser.add_argument("--programs", default="null", help="folder of compiled programs (default: each compiles anew)")
    parser.add_argument("--out", type=Path, default=Path("outputs"), help="where bench_engine.json goes")
    args = parser.parse_args()
    for peer in (p for p in PEERS.values() if not p.bench.is_file()):
        print(f"{peer.name} is not built: its rows are left out. `make peers` builds it")
    told = machine.describe()
    print(machine.headline(told))
    rows, limits = [], {threads: machine.of(threads) for threads in args.threads}
    load, agree = os.getloadavg()[0], dict[str, dict[str, float]]()
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        for model in args.models:
            if model == "SmolLM2-135M" and not (args.weights / checkpoints.SMOLLM2).is_file():
                print(f"{args.weights / checkpoints.SMOLLM2} is missing: {model} is left out. `make models` gets it")
                continue
            sources = checkpoints.made(model, args.folder or Path(temporary), args.weights)
            agree |= {f"{model}, {f}": a for f, a in agreements(model, sources, args, Path(temporary)).items()}
            for threads in args.threads:
                found = bench(model, sources, threads, args)
                limits[threads] = better(limits[threads], machine.of(threads))
                show(model, found, limits[threads], args)
                rows += found
    about: dict[str, Any] = {
        "agreement": agree,
        "load": [load, os.getloadavg()[0]],
        "limits": list(limits.values()),
        "peers": pins(),
    }
    written.write(args.out, "engine", told, **about, rows=rows)


def pins() -> list[str]:
    """The packages that peers are built from."""
    return [line.split()[0] for line in SOURCES.read_text().splitlines() if "==" in line]


if __name__ == "__main__":
    main()

"""Speed of whole models beside transformers: `python -m plugins.bench.engine`, from the root of a checkout.

Prefill and decode of SmolLM2-135M (bf16, int8) and of the embedded gpt-oss (bf16, MXFP4), and of the same checkpoints
by transformers and torch on CPU: the same prompt, the same number of tokens, greedy. Every contender runs in a process
of its own, so that its memory is its own; contenders take turns, and a figure is the median over all turns. Beside them
stands what memory allows: reading all weights once a token. Where others compute too, CPU seconds say more than time.

SmolLM2's weights are real ones, of WEIGHTMILL_MODELS or .models (`make models`); without them its part is left out, and
so is transformers' where it is not installed. It is not a test: nothing here checks a result.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.testing.peak import watch

ROOT = Path(__file__).parents[2]
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
TINY = ROOT / "plugins/models/gpt_oss/tiny"
TEXT = ROOT / "plugins/texts/sotu_eval.txt"
CORES = len(os.sched_getaffinity(0))
# name: (who, quant or torch dtype, overrides)
CONTENDERS: dict[str, dict[str, tuple[str, str, list[str]]]] = {
    "SmolLM2-135M": {
        "weightmill bf16": ("ours", "none", []),
        "weightmill bf16, activations bf16": ("ours", "none", ["engine.dtype=bf16"]),
        "weightmill int8": ("ours", "int8", []),
        "transformers bf16": ("theirs", "bfloat16", []),
        "transformers fp32": ("theirs", "float32", []),
    },
    "gpt-oss, embedded": {
        "weightmill bf16": ("ours", "none", []),
        "weightmill mxfp4": ("ours", "mxfp4", []),
        "transformers bf16": ("theirs", "bfloat16", []),
        "transformers fp32": ("theirs", "float32", []),
    },
}


def prompt_of(source: Path, tokens: int) -> list[int]:
    """The first `tokens` tokens of a text, by the checkpoint's tokenizer.json: the same for all contenders."""
    from tokenizers import Tokenizer

    ids: list[int] = Tokenizer.from_file(str(source / "tokenizer.json")).encode(TEXT.read_text()[: 20 * tokens]).ids
    return ids[:tokens]


def ours(source: Path, quant: str, overrides: list[str], prompt: int, new: int, repeats: int) -> dict[str, Any]:
    """Weightmill, compiling anew."""
    import pipeline
    from plugins.engine.generate import generate
    from plugins.engine.options import Sampling

    start = time.perf_counter()
    model = pipeline.load_model(source, quant=quant, overrides=["engine.programs=null", *overrides])
    load_s = time.perf_counter() - start
    ids, sampling = prompt_of(source, prompt), Sampling(max_tokens=new)
    prefill, decode, cpu = [], [], []
    tokens: list[int] = []
    for i in range(repeats + 1):  # the first compiles
        began = time.process_time()
        (done,), t = generate(model.runtime, [ids], sampling)
        if i:
            prefill.append(t.prefill)
            decode.append(t.decode)
            cpu.append(time.process_time() - began)
        tokens = list(done.tokens)
    return {
        "prefill": prefill, "decode": decode, "cpu": cpu, "load": load_s, "compile": model.runtime.compile_s,
        "weights": model.runtime.device_nbytes, "cache": model.runtime.cache_nbytes(1, prompt + new), "tokens": tokens,
    }  # fmt: skip


class _Clock:
    """A transformers streamer that notes when the first token comes."""

    def __init__(self) -> None:
        self.calls, self.first = 0, 0.0

    def put(self, value: Any) -> None:
        self.calls += 1
        if self.calls == 2:  # the first call brings the prompt
            self.first = time.perf_counter()

    def end(self) -> None: ...


def theirs(source: Path, dtype: str, _: list[str], prompt: int, new: int, repeats: int) -> dict[str, Any]:
    """transformers' generate."""
    import torch
    from transformers import AutoModelForCausalLM

    start = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
    load_s = time.perf_counter() - start
    ids = torch.tensor([prompt_of(source, prompt)])
    prefill, decode, cpu = [], [], []
    for i in range(repeats + 1):  # the first warms up
        clock, began, start = _Clock(), time.process_time(), time.perf_counter()
        done = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new, min_new_tokens=new,
            streamer=clock, return_dict_in_generate=True, pad_token_id=0, eos_token_id=[],
        )  # fmt: skip
        end = time.perf_counter()
        if i:
            prefill.append(clock.first - start)
            decode.append(end - clock.first)
            cpu.append(time.process_time() - began)
    held = [t for layer in done.past_key_values.layers for t in (layer.keys, layer.values)]
    return {
        "prefill": prefill, "decode": decode, "cpu": cpu, "load": load_s, "compile": 0.0,
        "weights": sum(p.nbytes for p in model.parameters()), "cache": sum(t.nbytes for t in held),
        "tokens": done.sequences[0, prompt:].tolist(),
    }  # fmt: skip


def bandwidth(nbytes: int = 1 << 28) -> float:
    """Bytes a second that all cores together read from memory."""
    import numpy as np

    parts = [np.ones(nbytes // 8, np.int64) for _ in range(CORES)]
    seconds = []
    with ThreadPoolExecutor(CORES) as pool:
        for _ in range(5):
            start = time.perf_counter()
            list(pool.map(lambda part: part.sum(), parts))
            seconds.append(time.perf_counter() - start)
    return CORES * nbytes / min(seconds)


def turn(model: str, name: str, source: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One contender once, in its own process."""
    job = {"model": model, "name": name, "source": str(source)} | {
        k: vars(args)[k] for k in ("prompt", "new", "repeats")
    }
    peak = watch([sys.executable, "-m", "plugins.bench.engine", "--job", json.dumps(job)], cwd=ROOT)
    if peak.returncode:
        raise SystemExit(peak.output)
    told: dict[str, Any] = json.loads(peak.output.splitlines()[-1])
    return {**told, "peak": peak.tree_nbytes}


def job(text: str) -> None:
    """What `turn` asks for; the answer is the last line of the output."""
    j = json.loads(text)
    who, how, overrides = CONTENDERS[j["model"]][j["name"]]
    call: Callable[..., dict[str, Any]] = ours if who == "ours" else theirs
    print("\n" + json.dumps(call(Path(j["source"]), how, overrides, j["prompt"], j["new"], j["repeats"])))


def smollm2(models: Path, folder: Path) -> Path:
    """The GGUF file as a folder of bf16, which transformers can read too."""
    out = folder / "smollm2"
    command = ["+model=smollm2", f"model.source={models / SMOLLM2}", "quant=none", "export=plain", "flow=convert"]
    made = watch([sys.executable, "-m", "pipeline", *command, f"paths.run={out}", "progress=false"], cwd=ROOT)
    if made.returncode:
        raise SystemExit(made.output)
    return out / "model"


def bench(model: str, source: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each contender: medians over all turns."""
    names = [n for n, (who, *_) in CONTENDERS[model].items() if who == "ours" or find_spec("transformers")]
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(args.rounds):
        for name in names:
            seen[name].append(turn(model, name, source, args))
    rows = []
    for name, found in seen.items():
        row: dict[str, Any] = {"model": model, "name": name, "tokens": found[0]["tokens"]}
        for key in ("prefill", "decode", "cpu"):
            row[key] = statistics.median(s for turn in found for s in turn[key])
        row |= {key: statistics.median(turn[key] for turn in found) for key in ("load", "compile", "peak")}
        row |= {key: found[0][key] for key in ("weights", "cache")}
        rows.append(row | {"prefill_rate": args.prompt / row["prefill"], "decode_rate": (args.new - 1) / row["decode"]})
    return rows


def show(model: str, rows: list[dict[str, Any]], args: argparse.Namespace, rate: float) -> None:
    from rich.console import Console
    from rich.table import Table

    peers = {r["name"]: r for r in rows if r["name"].startswith("transformers")}

    def ratios(row: dict[str, Any], key: str) -> str:
        return " / ".join(f"{row[key] / peer[key]:.2f}" for peer in peers.values()) if peers else "–"

    def agreed(row: dict[str, Any]) -> str:
        peer = peers.get("transformers fp32")
        pairs = zip(row["tokens"], peer["tokens"] if peer else (), strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), args.new)
        return str(same) if peer else "–"

    turns = f"{args.rounds} processes of {args.repeats}"
    table = Table(
        title=f"{model}: {args.prompt} tokens of prompt, {args.new} new, median of {turns}", title_justify="left"
    )
    heads = (
        "", "prefill\ntokens/s", "× bf16\n/ fp32", "decode\ntokens/s", "× bf16\n/ fp32", "CPU s\na text",
        "as fp32's\ntokens", "weights\nMB", "KV\nMB", "peak\nMB", "load\ns", "compile\ns",
    )  # fmt: skip
    for head in heads:
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    for r in rows:
        table.add_row(
            r["name"], f"{r['prefill_rate']:.0f}", ratios(r, "prefill_rate"), f"{r['decode_rate']:.1f}",
            ratios(r, "decode_rate"), f"{r['cpu']:.2f}", agreed(r), f"{r['weights'] / 1e6:.1f}",
            f"{r['cache'] / 1e6:.1f}", f"{r['peak'] / 1e6:.0f}", f"{r['load']:.1f}", f"{r['compile']:.1f}",
        )  # fmt: skip
    console = Console(width=160)
    console.print(table)
    console.print(
        "× transformers: its bf16 / its fp32. as fp32's: tokens before the first that differs from its fp32 text."
    )
    if model == "SmolLM2-135M":
        limits = [f"{r['name']} {rate / r['weights']:.0f}" for r in rows]
        console.print(f"memory reads {rate / 1e9:.1f} GB/s: at most, in tokens/s, {', '.join(limits)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="processes of each contender")
    parser.add_argument("--repeats", type=int, default=3, help="texts in each process, after one to warm up")
    parser.add_argument("--prompt", type=int, default=256, help="tokens")
    parser.add_argument("--new", type=int, default=64, help="tokens")
    parser.add_argument("--only", choices=list(CONTENDERS), help="one of the models")
    parser.add_argument("--models", type=Path, default=Path(os.environ.get("WEIGHTMILL_MODELS", ".models")))
    parser.add_argument("--out", type=Path, default=Path("outputs"), help="where bench_models.json goes")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        return job(args.job)
    if args.new < 2:
        parser.error("--new: at least 2")
    if not find_spec("transformers"):
        print("transformers is not installed (the extra `oracles`): its rows are left out")
    rate, rows, load = bandwidth(), [], os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for model in [args.only] if args.only else CONTENDERS:
            if model == "SmolLM2-135M" and not (args.models / SMOLLM2).is_file():
                print(f"{args.models / SMOLLM2} is missing: SmolLM2 is left out. `make models` gets it (98 MB)")
                continue
            source = smollm2(args.models.absolute(), Path(folder)) if model == "SmolLM2-135M" else TINY
            found = bench(model, source, args)
            show(model, found, args, rate)
            rows += found
    print(f"{CORES} cores; load average {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    args.out.mkdir(parents=True, exist_ok=True)
    told = {"cores": CORES, "load": load, "bandwidth": rate, "rows": rows}
    (args.out / "bench_models.json").write_text(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()

"""Trees of runs as big as they come: `python -m tests.cases.many_runs FOLDER [RUNS [POINTS]]`.

What is in the files is made up, and of the form and about the size that runs leave: a manifest, a description with its
keys, a config, and a line of metrics for each update of a training.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import yaml

QUANTS = ("mxfp4", "int8", "int4", "nvfp4", "keep")
STARTED = 1_790_000_000.0
SETTINGS = 40  # of each group: what a config.yaml comes to, 13 KB
GROUPS = ("engine", "train", "evaluate", "data", "kernels", "sampling")


def make_run(folder: Path, i: int, *, points: int = 0, state: str = "complete") -> None:
    """A run whose numbers follow from `i`.

    Args:
        points: lines of metrics, of a training.
        state: `complete`, `interrupted`, `failed`, `elsewhere`.
    """
    rng = random.Random(i)
    quant = QUANTS[i % len(QUANTS)]
    command = ["+model=gpt_oss", f"quant={quant}", f"seed={i}", "flow=finetune"]
    folder.mkdir(parents=True)
    _write(folder / "run.json", _description(i, command))
    (folder / "config.yaml").write_text(_config(i))
    with (folder / "metrics.jsonl").open("w") as file:
        loss = 4.0
        for step in range(points):
            loss += rng.uniform(-0.01, 0.009)
            file.write(f'{{"kind": "train", "step": {step}, "loss": {loss:.6f}, "time": {STARTED + step:.3f}}}\n')
    if state != "complete":
        chunks = [{"key": f"export-{c}", "record": {"digest": "0" * 32}} for c in range(3)]
        (folder / "journal.jsonl").write_text("".join(json.dumps(c) + "\n" for c in chunks))
        host = "elsewhere.example" if state == "elsewhere" else "localhost"
        tries: list[dict[str, Any]] = [{"event": "began", "at": STARTED + i, "host": host, "pid": 1, "total": 12}]
        tries += [{"event": "failed", "at": STARTED + i, "why": "no room"}] if state == "failed" else []
        (folder / "tries.jsonl").write_text("".join(json.dumps(t) + "\n" for t in tries))
        if state == "elsewhere":
            (folder / ".lock").touch()
        return
    _write(folder / "manifest.json", _manifest(folder, i, command, rng))


def make_tree(outputs: Path, runs: int, *, points: int = 1000, long: int = 0, long_points: int = 1_000_000) -> None:
    """So many runs, of them the first `long` with more points."""
    for i in range(runs):
        make_run(outputs / f"gpt_oss-{QUANTS[i % len(QUANTS)]}-seed={i}", i, points=long_points if i < long else points)


def _description(i: int, command: list[str]) -> dict[str, Any]:
    parts = {"config": {f"field_{n}": n for n in range(SETTINGS)}, "code": {f"module_{n}": "0" * 32 for n in range(60)}}
    nodes = {stage: {"key": f"{i:032x}", "parts": parts} for stage in ("load", "decode", "quantize", "train")}
    inputs = {"/models/a.safetensors": {"nbytes": 1 << 20, "mtime_ns": 1, "inode": 1, "xxh3_128": None}}
    return {"weightmill": 1, "id": f"{i + 1:032x}", "nodes": nodes, "places": {}, "inputs": inputs, "command": command}


def _config(i: int) -> str:
    tree: dict[str, Any] = {"seed": i, "paths": {"outputs": "outputs"}}
    tree |= {group: {f"setting_{n}": n + len(group) for n in range(SETTINGS)} for group in GROUPS}
    tree["train"]["optimizer"] = {"rate": 0.001 * (1 + i % 7), "name": "adamw"}
    return str(yaml.safe_dump(tree, sort_keys=False))


def _manifest(folder: Path, i: int, command: list[str], rng: random.Random) -> dict[str, Any]:
    figures = {
        "perplexity": {"value": rng.uniform(20, 90), "unit": "", "form": ".3f", "better": "lower"},
        "KL": {"value": rng.uniform(0, 0.1), "unit": "nats", "form": ".4f", "better": "lower"},
        "top-1": {"value": rng.uniform(80, 100), "unit": "%", "form": ".2f", "better": "higher"},
    }
    sums = {"count": 1000, "max_abs": 0.1, "rmse": 0.01, "sqnr_db": 18.0, "sq_error": 1.0, "sq_signal": 70.0}
    names = [f"model.layers.{n}.mlp.experts.{p}_proj" for n in range(12) for p in ("down", "gate_up")]
    tensors = [{"name": name, **sums, "group": "experts", "encoding": "e2m1/32/e8m0"} for name in names]
    errors = [{"name": "experts", **sums, "tensors": len(names), "encoding": "e2m1/32/e8m0"}]
    stage = {"name": "load", "tensors": 1, "nbytes_in": 1, "nbytes_out": 1, "seconds": 0.1}
    return {
        "weightmill": 1, "run": str(folder), "command": command, "started": STARTED + i, "seconds": rng.uniform(1, 100),
        "inputs": [], "outputs": [], "stages": [stage], "errors": errors, "tensors": tensors, "nbytes_bf16": 10_000_000,
        "nbytes_in": 1, "nbytes_out": 3_000_000 + i, "chunks": {"all": 1, "reused": 0}, "backends": [], "versions": {},
        "reused": False, "chosen": {}, "results": {"evaluate": {"figures": figures}}, "exit_code": 0, "declined": [],
        "ignored": [], "found": {}, "predicted": [], "nbytes_source": 1, "encodings": {}, "exports": {},
    }  # fmt: skip


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[2:]]
    make_tree(Path(sys.argv[1]), *given[:1] or [2000], points=(given[1:2] or [1000])[0], long=3)

"""Folders of runs as runs leave them, written without running anything."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline.figures import Figure
from pipeline.records.run import METRICS, Run, read
from pipeline.reporting.manifest import Report, plain
from pipeline.reporting.writing import write_records
from pipeline.tensors.spec import group_of
from pipeline.tensors.stats import Gain

HOSTILE = (
    '</title><script>document.title="owned"</script>"\'><img src=x onerror=alert(1)>\n'
    "\u202egnp.exe\x1b[31m${{7*7}}{{7*7}}"
)


def tensor(name: str, sq_error: float = 1.0, sq_signal: float = 100.0, count: int = 1000) -> dict[str, Any]:
    """A row of a manifest: what was lost of a tensor."""
    sqnr = 10 * math.log10(sq_signal / sq_error) if sq_error else None
    return {
        "name": name, "group": "", "encoding": "e2m1/32/e8m0", "count": count, "max_abs": 0.5 * bool(sq_error),
        "rmse": math.sqrt(sq_error / count), "sqnr_db": sqnr, "sq_error": sq_error, "sq_signal": sq_signal,
    }  # fmt: skip


def layers(count: int, kinds: Sequence[str] = ("mlp.up", "mlp.down")) -> list[dict[str, Any]]:
    """Of every layer some tensors; of the last layer the last is exact."""
    found = [tensor(f"model.layers.{n}.{k}.weight", 1 + n + i / 3) for n in range(count) for i, k in enumerate(kinds)]
    return [*found[:-1], tensor(found[-1]["name"], 0.0)]


def gain(name: str, share: float) -> dict[str, Any]:
    """A row of a manifest: what outputs of a tensor lost, rounded to the nearest and by GPTQ."""
    of = Gain("products", 200.0, {"nearest": 200 * share, "gptq": 100 * share})
    return {"name": name, "group": group_of(name), "encoding": "e2m1/32/e8m0", **plain(of)}


def scored(perplexity: float, kl: float) -> dict[str, Any]:
    """What `evaluate` found."""
    figures = {"perplexity": Figure(perplexity, better="lower"), "KL": Figure(kl, "nats", ".4f", "lower")}
    rows = [["a.txt", Figure(8160, form=",d"), Figure(perplexity), Figure(kl, form=".4f")]]
    columns = ["text", "tokens scored", "after", "KL"]
    tables = [{"title": "Perplexity", "columns": columns, "rows": rows, "streamed": False}]
    return dict(plain({"figures": figures, "tables": tables, "texts": {}}))


def write(
    folder: Path, *, command: Sequence[str] = ("+model=gpt_oss", "quant=mxfp4"), tensors: Sequence[dict[str, Any]] = (),
    results: Mapping[str, Any] | None = None, training: Sequence[Mapping[str, Any]] = (), complete: bool = True,
    config: Mapping[str, Any] | None = None, **more: Any,
) -> Run:  # fmt: skip
    """The run in `folder`: load → quantize → export, and what is given of it.

    Args:
        training: rows that a stage wrote to metrics.jsonl.
        complete: whether it ended.
        more: fields of its report.
    """
    folder.mkdir(parents=True)
    stages = ["load", "quantize", "export", *(results or {})]
    nodes = {
        n: {"key": n, "parts": {"takes": {"checkpoint": stages[i - 1]} if i else {}}} for i, n in enumerate(stages)
    }
    (folder / "run.json").write_text(
        json.dumps({"id": folder.name, "nodes": nodes, "places": {}, "command": list(command)})
    )
    settings = {"quant": {"element": "e2m1", "block_elems": 32}, "seed": 0, **(config or {})}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    rows = [
        {"name": n, "tensors": 7, "nbytes_in": 4096, "nbytes_out": 2048, "seconds": 0.5 + i}
        for i, n in enumerate(stages)
    ]
    (folder / METRICS).write_text("".join(json.dumps(row) + "\n" for row in training), encoding="utf-8")
    groups = {group_of(t["name"]): t for t in tensors}
    report = Report(
        run=str(folder), command=list(command), started=1.7e9, seconds=3.25,
        inputs=[{"path": "/models/a.safetensors", "nbytes": 4096, "mtime_ns": 0, "xxh3_128": "ab" * 16}],
        outputs=[{"path": str(folder / "model/model.safetensors"), "nbytes": 1024, "xxh3_128": "cd" * 16}],
        stages=rows, errors=[{**t, "name": g, "tensors": 1} for g, t in groups.items()], tensors=list(tensors),
        nbytes_bf16=4096, nbytes_in=4096, nbytes_out=1024, chunks={"all": 4, "reused": 0},
        backends=[["quantize", "native"]],
        versions={"python": "3.11.7", "numpy": "2.4.6"}, results=dict(results or {}),
        gains=[gain(t["name"], 0.01 * (1 + i)) for i, t in enumerate(tensors)],
        predicted=[
            {"what": "memory", "unit": "bytes", "planned": 2000, "measured": 1500},
            {"what": "time", "unit": "s", "planned": None, "measured": 3.25, "no_rate_yet": ["load"]},
        ],
        declined=[{"op": "quantize", "backend": "xla", "reason": "no such block", "ran": "native", "times": 3}],
        ignored=[{"stage": "load", "tensor": "rope.freqs", "reason": "is computed"}],
    )  # fmt: skip
    if complete:
        write_records(folder, replaced(report, more))
    return read(folder)


def replaced(report: Report, fields: Mapping[str, Any]) -> Report:
    from dataclasses import replace

    return replace(report, **fields)


def updates(count: int) -> list[dict[str, Any]]:
    """Rows of a training: its losses, some held out, a text."""
    found: list[dict[str, Any]] = [
        {"kind": "train", "step": n, "loss": 4 / n, "rate": 1e-3 * n / count, "seconds": 0.01}
        for n in range(1, count + 1)
    ]
    held = [{"kind": "held_out", "step": n, "loss": 5 / (n + 1)} for n in range(0, count + 1, max(1, count // 4))]
    return [*found, *held, {"kind": "sample", "step": count, "prompt": "Once", "text": "upon a time"}]


def sweep(folder: Path, jobs: int = 6, of_layers: int = 4) -> list[Run]:
    """Runs that differ in two settings, and in what they found."""
    return [
        write(
            folder / f"job{n}", command=("+model=gpt_oss", f"quant={('mxfp4', 'int8')[n % 2]}", f"seed={n // 2}"),
            tensors=layers(of_layers), nbytes_out=1024 + 64 * n,
            results={"evaluate": scored(60 + n / 3, 0.001 * (n + 1))},
        )
        for n in range(jobs)
    ]  # fmt: skip

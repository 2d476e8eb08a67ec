"""`flow=bench_scale` as people type it, with tiny sizes: a conversion, and our engine over its batch."""

import json
from pathlib import Path

from tests.cli.run import pipeline

SMALL = (
    "scales=[convert,batch]", "scales.convert.sizes=[1MB,2MB,3MB,4MB]", "scales.batch.sizes=[1,2,3,4]",
    "scales.batch.hidden=32", "scales.batch.inner=64", "scales.batch.heads=2", "scales.batch.layers=1",
    "scales.batch.vocab=64", "scales.batch.context=4", "scales.batch.new=4", "scales.batch.repeats=1",
    "bench.rounds=1", "bench.seconds=null", "bench.threads=1",
)  # fmt: skip


def test_sizes_are_measured_and_drawn(tmp_path: Path) -> None:
    said = pipeline("flow=bench_scale", *SMALL, cwd=tmp_path)
    assert said.code == 0, said.err
    assert "10 of 10 cells measured" in said.out
    [file] = (tmp_path / "outputs").glob("*/bench.json")
    rows = json.loads(file.read_text())["rows"]
    fits = {row["engine"]: row["fits"] for row in rows if "fits" in row}
    assert {name: list(fit) for name, fit in fits.items()} == {
        "convert": ["seconds", "peak"], "batch": ["token", "peak"],
    }  # fmt: skip
    assert abs(fits["convert"]["peak"]["exponent"]) < 0.1
    tokens = [row["metrics"]["token"]["value"] for row in rows if row["engine"] == "batch" and "size" in row]
    assert len(tokens) == 4
    assert all(1e-6 < token < 1 for token in tokens)
    assert {p.name for p in file.parent.iterdir()} >= {"scale.png", "rounds.jsonl"}
    assert sum(p.stat().st_size for p in file.parent.rglob("*") if p.is_file()) < 1 << 20, "checkpoints are gone"
    [run] = json.loads(pipeline("runs", "--format", "json", cwd=tmp_path).out)["runs"]
    assert run["state"] == "complete"

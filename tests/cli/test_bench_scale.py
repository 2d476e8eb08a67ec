"""`flow=bench_scale` as people type it, with tiny sizes of a conversion."""

import json
from pathlib import Path

from tests.cli.run import pipeline

SMALL = ("scales=[convert]", "scales.convert.sizes=[1MB,2MB,3MB,4MB]", "bench.rounds=1", "bench.seconds=null")


def test_sizes_are_measured_and_drawn(tmp_path: Path) -> None:
    said = pipeline("flow=bench_scale", *SMALL, cwd=tmp_path)
    assert said.code == 0, said.err
    assert "5 of 5 cells measured" in said.out
    [file] = (tmp_path / "outputs").glob("*/bench.json")
    rows = json.loads(file.read_text())["rows"]
    [fits] = [row["fits"] for row in rows if "fits" in row]
    assert list(fits) == ["seconds", "cpu", "peak"]
    assert abs(fits["peak"]["exponent"]) < 0.1
    seconds = [row["metrics"]["seconds"]["value"] for row in rows if "size" in row]
    assert len(seconds) == 4
    assert all(0.1 < s < 60 for s in seconds)
    assert {p.name for p in file.parent.iterdir()} >= {"scale.png", "rounds.jsonl"}
    assert sum(p.stat().st_size for p in file.parent.rglob("*") if p.is_file()) < 1 << 20, "checkpoints are gone"
    [run] = json.loads(pipeline("runs", "--format", "json", cwd=tmp_path).out)["runs"]
    assert run["state"] == "complete"

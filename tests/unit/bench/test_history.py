"""`bench --against`: which earlier benchmarks asked the same, what their figures were, and the picture of that."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.bench import history, trend_picture
from pipeline.bench.against import NAME
from pipeline.records import schemas
from pipeline.running import text_stream

MACHINE = {"kind": "A × 2", "threads": 2}


def metric(value: float, unit: str = "tokens/s", better: str = "higher") -> dict[str, Any]:
    return {"value": value, "unit": unit, "better": better, "spread": 0.02, "rounds": [value]}


def record(when: str, rate: float, **more: Any) -> dict[str, Any]:
    row = {
        "engine": "jax", "quant": "none", "state": "measured", "why": "", "wrong": "",
        "metrics": {"decode × 1": metric(rate), "peak memory": metric(3 << 20, "B", "lower")},
    }  # fmt: skip
    return {
        "benchmark": "engines", "machine": MACHINE, "rows": [row], "when": when, "workload": {"new": 4},
        "command": ["+model=llama", "model.source=here/tiny", "flow=bench", "bench.against=x"], **more,
    }  # fmt: skip


def written(outputs: Path, name: str, found: dict[str, Any]) -> Path:
    (outputs / name).mkdir(parents=True)
    (outputs / name / "run.json").write_text("{}")
    schemas.write("benchmark", outputs / name / NAME, found)
    return outputs / name


def test_only_what_asked_the_same_is_in_a_line_and_no_more_than_five(tmp_path: Path) -> None:
    for day in (7, 1, 2, 3, 4, 5, 6):
        written(tmp_path, f"b-{day}", record(f"2026-01-0{day}", 100 + day))
    written(tmp_path, "elsewhere", record("2026-01-08", 1, machine={"kind": "B × 2", "threads": 2}))
    written(tmp_path, "one-thread", record("2026-01-08", 1, machine={"kind": "A × 2", "threads": 1}))
    written(tmp_path, "longer", record("2026-01-08", 1, workload={"new": 64}))
    written(tmp_path, "other-model", record("2026-01-08", 1, command=["+model=llama", "model.source=here/large"]))
    written(tmp_path, "later", record("2026-02-01", 1))
    now = record("2026-01-09", 90, command=["+model=llama", "model.source=/there/tiny", "flow=bench"])
    run = written(tmp_path, "now", now)
    before = history.earlier(tmp_path, run, now)
    assert [one.name for one in before] == ["b-3", "b-4", "b-5", "b-6", "b-7"]
    rate, memory = history.trends(now["rows"], record("", 110)["rows"], before)
    assert (rate.cell, rate.metric) == ("jax none", "decode × 1")
    shown = history.table([rate, memory], before, "b-1")
    assert shown.title == "Trend since b-1; before: 2026-01-03, 2026-01-04, 2026-01-05, 2026-01-06, 2026-01-07"
    assert shown.rows[0] == (
        "jax none", "decode × 1, tokens/s", "103 · 104 · 105 · 106 · 107", "110", "90", "-18.2%",
    )  # fmt: skip
    assert shown.rows[1][2:5] == ("3.0 MiB · 3.0 MiB · 3.0 MiB · 3.0 MiB · 3.0 MiB", "3.0 MiB", "3.0 MiB")


def test_a_cell_that_was_not_measured_then_has_a_gap(tmp_path: Path) -> None:
    failed = record("2026-01-01", 1)
    failed["rows"][0] |= {"state": "failed", "metrics": {}}
    written(tmp_path, "a", failed)
    now = record("2026-01-03", 90)
    before = history.earlier(tmp_path, written(tmp_path, "b", now), now)
    [rate, _] = history.trends(now["rows"], record("", 100)["rows"], before)
    assert rate.before == (None,)
    trend_picture.draw(tmp_path / trend_picture.NAME, [rate], before, history.Earlier("a", record("", 100)))


def test_what_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(text_stream, "write", said.append)
    (written(tmp_path, "torn", record("2026-01-01", 1)) / NAME).write_text('{"weight')
    now = record("2026-01-02", 1)
    assert history.earlier(tmp_path, written(tmp_path, "now", now), now) == []
    assert "torn" in said[0]
    assert "left out of the trend" in said[0]


def test_the_picture_has_the_line_where_the_value_is(tmp_path: Path) -> None:
    """A decline to half: the line of it is drawn well below the dashed one, whatever the cell's colour."""
    from matplotlib.image import imread

    pictures = []
    for name, rate in (("level", 100.0), ("half", 50.0)):
        before = [history.Earlier("a", record("1", 100)), history.Earlier("b", record("2", 100))]
        [trend, _] = history.trends(record("3", rate)["rows"], record("", 100)["rows"], before)
        trend_picture.draw(tmp_path / f"{name}.png", [trend], before, before[0])
        pictures.append(imread(tmp_path / f"{name}.png")[..., :3])
    blue = [(p[..., 2] - p[..., 0] > 0.4) for p in pictures]
    heights = [np.ptp(np.nonzero(b[: len(b) * 3 // 4].any(axis=1))[0]) for b in blue]  # above the legend
    assert heights[1] > 3 * heights[0], heights


def test_a_baseline_that_asked_something_else_says_what() -> None:
    was = record("2026-01-01", 1, workload={"new": 4, "prefill": [8], "repeats": 1, "leak": 0})
    same = {"machine": MACHINE, "command": ["+model=llama", "model.source=/there/tiny"]}
    asked = {"new": 4, "prefill": (8,), "repeats": 3, "leak": 200, "later": 1}
    assert not history.differing(same | {"workload": asked}, was)
    assert history.differing(
        {"machine": {"threads": 1}, "command": ["+model=gpt_oss"], "workload": {"new": 4, "prefill": (8, 16)}}, was
    ) == [
        "model=gpt_oss, which was llama", "model.source=nothing, which was tiny",
        "bench.prefill=[8,16], which was [8]", "bench.threads=1, which was 2",
    ]  # fmt: skip

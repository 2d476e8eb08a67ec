"""Pictures of what stages measured: their numbers are those of the manifest."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.figures import Figure
from pipeline.records.run import Run
from pipeline.reporting.html import page
from pipeline.reporting.html.lanes import MOST, Mark, lanes
from pipeline.reporting.html.plots import plots
from pipeline.reporting.html.scales import scale
from tests.cases import written_runs
from tests.unit.reporting.html.reading import attention, gist, parsed

NO_CHECKPOINT: dict[str, Any] = {"nbytes_bf16": 0, "nbytes_in": 0, "nbytes_out": 0, "inputs": []}


def metric(rounds: Sequence[float], unit: str = "tokens/s", better: str = "higher") -> dict[str, Any]:
    middle = sorted(rounds)[len(rounds) // 2]
    return {"value": middle, "unit": unit, "better": better, "spread": 0.1, "rounds": [*rounds]}


def cell(engine: str, quant: str, **more: Any) -> dict[str, Any]:
    return {"engine": engine, "quant": quant, "state": "measured", "why": "", "wrong": "", "metrics": {}, **more}


def ran(folder: Path, rows: Sequence[dict[str, Any]]) -> Run:
    return written_runs.write(folder, results={"bench": {"rows": rows, "figures": {}, "tables": []}})


def benched(folder: Path) -> Run:
    """Three cells that were measured, of which one is wrong, and one that was not."""
    rows = [
        cell(
            engine, quant, nbytes=nbytes, quality={"kl": kl}, wrong=wrong,
            metrics={"decode × 1": metric(rounds), "peak memory": metric([nbytes * 3.0], "B", "lower")},
        )
        for engine, quant, nbytes, kl, rounds, wrong in (
            ("jax", "none", 8 << 20, -1e-9, (90.0, 100.0, 120.0), ""), ("jax", "mxfp4", 2 << 20, 0.02, (250.0,), ""),
            ("torch", "mxfp4", 3 << 20, 9.0, (40.0, 41.0, 44.0), "KL 9 nats"),
        )
    ]  # fmt: skip
    rows.append(cell("tinygrad", "none", state="missing", why="not installed"))
    return ran(folder, rows)


def test_cells_of_engines_are_drawn_with_their_rounds_and_what_is_paid_for_what(tmp_path: Path) -> None:
    run = benched(tmp_path / "a")
    drawn = plots([run])
    assert drawn["Decode × 1"].rows == [
        {"measured": "none", "by": "jax", "decode × 1": 100.0, "least": 90.0, "largest": 120.0, "": None},
        {"measured": "mxfp4", "by": "jax", "decode × 1": 250.0, "least": 250.0, "largest": 250.0, "": None},
        {"measured": "mxfp4", "by": "torch", "decode × 1": 41.0, "least": 40.0, "largest": 44.0, "": "KL 9 nats"},
    ]
    assert [row["peak memory"] for row in drawn["Peak memory"].rows] == [24 << 20, 6 << 20, 9 << 20]
    paid = drawn["KL over decode × 1"].rows  # of those that are right
    assert [(r["run"], r["decode × 1"], r["KL"]) for r in paid] == [
        ("jax none", 100.0, 0.0),
        ("jax mxfp4", 250.0, 0.02),
    ]
    assert [(r["size"], r["front"]) for r in drawn["KL over size"].rows] == [
        (n << 20, paid[0]["front"]) for n in (8, 2)
    ]
    root = parsed(page.html([run]))
    (figure,) = [f for f in root.all("figure") if f.all("h3")[0].text == "Decode × 1"]
    said = [g.attributes["aria-label"] for g in figure.all("g") if g.attributes.get("class") == "point"]
    assert said[2] == "mxfp4, torch: decode × 1 41 tokens/s, KL 9 nats"
    assert "peak memory [MiB]" in root.text


def test_cost_over_size_and_losses_and_layers(tmp_path: Path) -> None:
    sizes = [
        cell("context", str(n), size=n, metrics={"peak": metric([n * 1.0, n * 2.0, n * 4.0], "B")}) for n in (1, 8)
    ]
    growth = cell("context", "growth", metrics={"peak × for ten times": metric([7.0], "×")})
    grown = plots([ran(tmp_path / "a", [*sizes, growth])])["Peak over size"].rows
    assert [(r["size"], r["peak"], r["least"], r["largest"]) for r in grown] == [
        (1, 2.0, 1.0, 4.0),
        (8, 16.0, 8.0, 32.0),
    ]
    trained = [cell(e, "8 × 256", losses=[3.0, 2.5], metrics={"step": metric([1.0], "ms")}) for e in ("ours", "torch")]
    losses = plots([ran(tmp_path / "b", trained)])["Losses"].rows
    assert [(r["line"], r["update"], r["value"]) for r in losses][1:3] == [
        ("ours, 8 × 256", 2, 2.5),
        ("torch, 8 × 256", 1, 3.0),
    ]
    groups = {f"model.layers.{n}": {"kl": 0.5 + n, "perplexity": 60.0 + n} for n in range(MOST + 2)}
    run = written_runs.write(tmp_path / "c", results={"sensitivity": {"groups": groups}})
    alone = plots([run])
    assert [r["KL of each layer"] for r in alone["KL of each layer"].rows] == [0.5 + n for n in range(MOST + 2)]
    text = page.html([run])
    assert f"Drawn are the first {MOST} of {MOST + 2}." in text
    (figure,) = [f for f in parsed(text).all("figure") if f.all("h3")[0].text == "KL of each layer"]
    ticks = [t.text for t in figure.all("svg")[0].all("text") if t.attributes.get("class") == "t"]
    assert len(ticks) == 2 * len({*ticks})  # it is high: the scale stands above it and below


def test_what_has_no_checkpoint_has_no_size_and_lines_below_a_table_are_read(tmp_path: Path) -> None:
    lines = {"title": "", "columns": [], "rows": [["to keep them, type:"], ["'model.extra_rules=[]'"]]}
    made = {"bench": {"rows": [], "figures": {}, "tables": [lines]}}
    root = parsed(page.html([written_runs.write(tmp_path / "a", results=made, **NO_CHECKPOINT)]))
    cards = [dt.text for box in root.all("div") if box.attributes.get("class") == "card" for dt in box.all("dt")]
    assert not {"as bf16", "read"} & {*cards}
    assert [p.text for p in root.all("pre")][-1] == "to keep them, type:\n'model.extra_rules=[]'"
    assert "bf16" not in gist(root)
    assert not [line for line in attention(root) if "not as expected" in line]


def test_a_cell_that_is_not_finite_is_in_the_table_only() -> None:
    marks = [Mark("a", "x", Figure(v, "s"), (v, 2.0)) for v in (float("nan"), 1.0)]
    chart = lanes("time", ("case", "by"), marks)
    assert len(chart.table.rows) == 2
    drawn = chart.draw(800)
    assert drawn.count('class="point"') == 1
    assert "nan" not in drawn


def test_what_is_as_good_as_nothing_makes_no_axis_by_magnitudes() -> None:
    assert not scale([5e-13, 0.0067], 0, 1).log
    assert scale([5e-6, 0.0067], 0, 1).log

"""The page of a comparison has the numbers of comparison.json, and words for what is worse."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.figures import Figure
from pipeline.reporting.compare.compared import Compared, compared
from pipeline.reporting.compare.differences import Differences
from pipeline.reporting.compare.files import as_text
from pipeline.reporting.html import comparison
from pipeline.reporting.html.comparison import html
from pipeline.reporting.html.page import MOST_NBYTES
from pipeline.reporting.manifest import plain
from tests.cases import written_runs
from tests.cases.written_runs import HOSTILE
from tests.unit.reporting.html.reading import Node, parsed


def job(folder: Path, quant: str, seed: int, perplexity: float, kl: float, **also: Any) -> Any:
    figures = {"perplexity": Figure(perplexity, better="lower"), "KL": Figure(kl, "nats", ".4f", "lower")}
    lost = [written_runs.tensor(f"model.layers.0.{k}.weight", 1 + len(quant) + i) for i, k in enumerate(("up", "down"))]
    given = {
        "command": ("+model=gpt_oss", f"quant={quant}", f"seed={seed}"),
        "config": {"seed": seed, **{f"of_{n}": quant for n in range(15)}},
    }
    given |= {"tensors": lost, "nbytes_out": 1024 * len(quant), "results": {"evaluate": plain({"figures": figures})}}
    return written_runs.write(folder / f"{quant}{seed}", **{**given, **also})


def jobs(folder: Path) -> Compared:
    """Repeats that are noise, repeats that are worse, one run alone, and one that has nothing."""
    found = [job(folder, "int8", n, 50.0 + n / 8, 0.02) for n in range(3)]
    found += [job(folder, "nf4", n, 60.0 + n / 8, 0.0195 + n / 1000) for n in range(3)]
    found += [job(folder, "mxfp4", 0, 50.0, 0.01, seconds=99.0), job(folder, "keep", 0, 1.0, 1.0, complete=False)]
    return compared(found)


def cells(node: Node) -> list[Node]:
    return [one for one in node.children if one.tag in ("th", "td")]


def tables(page: Node, *heads: str) -> list[list[list[Node]]]:
    """The rows of tables with these heads."""
    found = []
    for table in page.all("table"):
        lines = [cells(row) for row in table.all("tr")]
        if tuple(cell.text for cell in lines[0])[: len(heads)] == heads:
            found.append(lines[1:])
    return found


def number(cell: Node) -> float | None:
    value = cell.attributes.get("data-v")
    assert value is not None or cell.text in ("–", "exact"), cell.text
    return None if value is None else float(value)


def test_its_numbers_are_those_of_comparison_json(tmp_path: Path) -> None:
    found = jobs(tmp_path)
    page, said = parsed(as_text(found, None, "html")), found.as_json()
    seen: dict[tuple[str, str], list[Node]] = {}
    for lines in tables(page, "metric", "row", "verdict"):
        seen |= {(line[1].text, line[0].text.rstrip("↓↑").strip()): line[2:] for line in lines}
    made = {(row["name"], name): of for row in said["rows"] for name, of in row["metrics"].items()}
    assert seen.keys() == made.keys()
    assert ("quant=nf4", "perplexity") in seen
    for key, of in made.items():
        verdict, *numbers = seen[key]
        change = [None, None, None] if of["verdict"] == "baseline" else [of["change"], of["relative"], of["chance"]]
        change[1] = None if change[1] is None else 100 * change[1]
        expected = [of.get("mean"), *change[:2], of.get("deviation"), of.get("number"), change[2]]
        assert [number(cell) for cell in numbers] == expected, key
        assert (of["why"] or "missing" if of["verdict"] == "missing" else of["verdict"]) in verdict.text, key
        assert verdict.text.startswith("✗") == (of["verdict"] == "worse")
    assert {key for key, of in made.items() if of["verdict"] == "worse"} == {*found.regressions} != set()
    assert made["quant=nf4", "KL"]["verdict"] == "within noise"

    [lines] = tables(page, "tensors", "row", "as")
    lost = {(line[0].text, line[2].text, line[1].text): [number(c) for c in line[4:]] for line in lines}
    for group in said["errors"]:
        for row, e in zip(said["rows"], group["values"], strict=True):
            if e is not None:
                sqnr, _, *rest = lost.pop((group["group"], group["encoding"], row["name"]))
                assert [sqnr, *rest] == [e["sqnr_db"], e["rmse"], e["max_abs"], e["count"]]
    assert not lost

    lines = [line for some in tables(page, "", "of", "quant=int8") for line in some]
    shown = [[cell.text for cell in line[2:]] for line in lines]
    assert shown == [one["values"] for one in said["differences"]]
    marked = [{i for i, cell in enumerate(line[2:]) if cell.all("mark")} for line in lines]
    apart = [{i for i, v in enumerate(of["values"]) if v not in (of["values"][0], "–")} for of in said["differences"]]
    assert marked == apart


def test_settings_come_before_metrics_and_every_picture_has_its_table(tmp_path: Path) -> None:
    page = parsed(html(jobs(tmp_path), None, {}))
    titles = [heading.text for heading in page.all("h2")]
    assert titles.index("What differs") < titles.index("Metrics") < titles.index("Quantization error")
    figures = page.all("figure")
    assert len(figures) >= 3
    assert all(figure.all("table") and len(figure.all("svg")) >= 2 for figure in figures)
    strips = figures[0].all("svg")
    assert "✗\u00a0worse" in "".join(node.text for node in strips)


def test_limits_are_said_with_what_breaks_them(tmp_path: Path) -> None:
    found = jobs(tmp_path)
    limits = {given: found.broken([given]) for given in ("perplexity>90%", "perplexity>1%")}
    [lines] = tables(parsed(html(found, None, limits)), "limit")
    said = [line[2].text for line in lines]
    assert [line[1].text for line in lines] == ["✗ broken"] * 2  # one of the rows has no perplexity
    assert "allowed: 1 % worse" not in said[0]
    assert "50.125 ± 0.125 → 60.125 ± 0.125" in said[1]


@pytest.mark.parametrize("metrics", [("size", "KL"), ("size", "KL", "perplexity")])
def test_the_front_is_that_of_the_json(tmp_path: Path, metrics: tuple[str, ...]) -> None:
    found = jobs(tmp_path)
    front = found.pareto(*metrics)
    page = parsed(html(found, front, {}))
    [lines] = [rows for rows in tables(page, "row", "") if len(rows[0]) == 2 + len(metrics)]
    assert {line[0].text for line in lines if line[1].text == "on the front"} == {*front.front}
    values = {line[0].text: [number(cell) for cell in line[2:]] for line in lines}
    assert values == {n: [f.value for f in of] for n, of in zip(front.names, front.values, strict=True)}
    charts = next(node for node in page.all("section") if node.attributes["id"] == "pareto").all("figure")
    assert len(charts) == (1 if len(metrics) == 2 else 3)
    assert any("quant=keep is left out" in node.text for node in page.all("p"))


def test_a_page_of_many_rows_stays_small_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    few = jobs(tmp_path)
    times = 110
    rows = tuple(replace(one, values=one.values * times) for one in few.differences.rows)
    differences = Differences(rows, few.differences.equal)
    many = replace(few, groups=few.groups * times, changes=few.changes * times, differences=differences)
    text = html(many, None, {})
    assert 100_000 < len(text.encode()) <= MOST_NBYTES
    assert f"of {4 * times} rows are on this page" in text


def test_names_are_text(tmp_path: Path) -> None:
    found = compared([
        job(tmp_path, name, 0, 1.0 + n, 1.0, config={"x": f"{HOSTILE}{n}"}, command=("+model=a", f"quant={n}{HOSTILE}"),
            tensors=[written_runs.tensor(f"{HOSTILE}.w", 1.0 + n)],
            results={"evaluate": plain({"figures": {HOSTILE: Figure(1.0 + n, better="lower")}})})
        for n, name in enumerate(("a", "b"))
    ])  # fmt: skip
    page = parsed(html(found, None, {}))
    assert len(page.all("script")) == 1
    assert not page.all("img")
    assert "\u202e" not in page.text


def test_curves_are_there_but_of_long_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(
        [job(tmp_path, "int8", n, 1.0 + n, 1.0, training=written_runs.updates(20 + 80 * n)) for n in (0, 1)]
    )
    page = html(found, None, {})
    assert "Held-out loss" in page
    assert "long records" not in page
    monkeypatch.setattr(comparison, "CURVES_NBYTES", 4000)
    assert "for their long records: 1 of the runs" in html(found, None, {})

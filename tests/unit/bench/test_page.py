"""BENCHMARKS.md: figures of every kind of benchmark are on the page as they were measured, and nothing else is."""

import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.bench.page import Section, best, number, page
from tests.cases.bench_pages import faults, tables

MACHINE = {"kind": "A × 2", "threads": 2, "system": "Linux", "memory": 8 << 30, "python": "3.11", "load": 0.25}


def metric(value: float, unit: str, spread: float = 0.034) -> dict[str, Any]:
    return {"value": value, "unit": unit, "better": "lower", "spread": spread, "rounds": [value, value]}


def row(engine: str, quant: str, metrics: dict[str, Any], **more: Any) -> dict[str, Any]:
    known = {"state": "measured", "why": "", "wrong": "", "others": 0.04, "busy": False}
    return {"engine": engine, "quant": quant, **known, "metrics": metrics, **more}


def cell(engine: str, quant: str, rate: float, **more: Any) -> dict[str, Any]:
    quality = {"perplexity": 12.34567, "reference": 12.3, "kl": 0.01234, "top1": 0.987, "greedy": 7, "of": 8}
    metrics = {
        "decode × 1": metric(rate, "tokens/s"), "peak memory": metric(345 << 20, "B"), "perplexity": metric(12.34, ""),
    }  # fmt: skip
    latency = {"1": {"p50": 11.23, "p90": 12.34, "p99": 45.67}}
    beside = {"quality": quality, "latency_ms": latency, "nbytes": 98_765_432, "versions": {"jax": "0.7"}}
    return row(engine, quant, metrics, **(beside | more))


def record(benchmark: str, *rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    known = {"when": "2026-11-23T07:00:00+00:00", "command": ["flow=bench", "bench.against=x"], "seconds": 200.0}
    return {"weightmill": 1, "benchmark": benchmark, "machine": MACHINE, "rows": [*rows], **known, **more}


RECORDS = {
    "model": record(
        "engines", cell("jax", "none", 81.23456), cell("jax", "int8", 12345.6, busy=True, others=1.2),
        cell("quick", "int8", 99999.4, wrong="KL divergence 3 nats | more"),
        cell("odd", "none", 3.0, quality=cell("", "", 1)["quality"] | {"perplexity": None, "kl": None}),
        row("absent", "none", {}, state="missing", why="pip install absent"),
        regressions=["decode: slower, jax none"], against="last week",
    ),
    "ops": record(
        "ops", row("native", "softmax 1", {"time": metric(12.345, "µs")}),
        row("xla", "softmax 1", {"time": metric(1.5, "µs")}), row("native", "rope 64", {"time": metric(0.001, "µs")}),
        row("numpy", "rope 64", {}, wrong="off by 3"), limits={"read": 14.2e9},
    ),
    "scale": record(
        "scale", row("convert", "10 MB", {"s": metric(0.5, "s"), "peak": metric(1 << 20, "B")}),
        row("convert", "growth", {"s × for ten times the bytes": metric(9.8, "×")}),
        row("plan", "100", {"s": metric(0.25, "s"), "peak": metric(3 << 20, "B")}),
    ),
}  # fmt: skip


def written(records: dict[str, dict[str, Any]]) -> str:
    return page([Section(name, found) for name, found in records.items()], "make bench")


def test_all_that_was_measured_is_on_the_page_and_nothing_else() -> None:
    text = written(RECORDS)
    assert faults(text, RECORDS) == []
    assert "**✗ quick**" in text
    assert "bench.against" not in text, "the command may be typed again"
    assert "| absent | none | missing | pip install absent |" in text
    assert "| decode: slower, jax none |" in text
    assert "jax 0.7" in text
    assert "12,346 ± 3%*" in text
    assert [t[0] for t in tables(text)["ops"][1:]] == [["time, µs", "native", "xla", "numpy"]]
    assert "| limit: read, G a second | 14.2 |" in text
    assert "| rope 64 | 0.001 ± 3% | – | **✗** |" in text


def test_a_figure_that_is_changed_is_found() -> None:
    """Each of them, by any of its digits."""
    text = written(RECORDS)
    figures = list(re.finditer(r"(?<=[|/±] )-?[\d.,]+", text))
    assert len(figures) > 60
    missed = []
    for match in figures:
        for at in range(match.start(), match.end()):
            if text[at].isdigit():
                changed = text[:at] + str((int(text[at]) + 5) % 10) + text[at + 1 :]
                line = text.count("\n", 0, at)
                missed += [] if faults(changed, RECORDS) else [text.splitlines()[line]]
    assert {*missed} <= {line for line in text.splitlines() if line.startswith(SAID_ONCE)}


SAID_ONCE = ("| limit", "| took", "| others took", "| machine", "| versions")  # not among the rows of figures


def test_a_line_that_is_left_out_is_found() -> None:
    lines = written(RECORDS).splitlines()
    for i, line in enumerate(lines):
        if re.match(r"\| (\*\*✗ )?(jax|quick|odd|softmax 1|convert|plan)", line):
            assert faults("\n".join([*lines[:i], *lines[i + 1 :]]), RECORDS), line


def test_the_readme_has_the_engines_alone() -> None:
    text = best([Section(name, found) for name, found in RECORDS.items()])
    assert text.splitlines()[2] == "| model | jax | none | 81.23 ± 3% | 345.0 MiB ± 3% | 12.346 | 0.0123 | right |"
    assert "| model | quick | int8 | 99,999 ± 3% | 345.0 MiB ± 3% | 12.346 | 0.0123 | ✗ wrong |" in text
    assert "| model | jax | int8 | –* | 345.0 MiB ± 3%* |" in text
    assert "softmax" not in text
    assert best([Section("ops", RECORDS["ops"])]) == ""
    assert text.endswith("On A × 2, 2 cores each, 2026-11-23. `*`: others used the machine, so no speed is said.\n")


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "0"), (81.23456, "81.23"), (999.96, "1000"), (12345.6, "12,346"), (4.5e-5, "4.5e-05")]
)
def test_four_digits(value: float, shown: str) -> None:
    assert number(value) == shown


def test_pages_name_no_place_of_a_machine() -> None:
    assert Path.home().as_posix() not in written(RECORDS)

"""Thousands of lines at once give what one after another gives, whatever stands in them."""

import json
import random
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.records import points, schemas
from pipeline.records.columns import columns
from pipeline.records.points import METRIC, Position, blocks, rows, values_of
from pipeline.records.schemas import columns_hold, fault_of_line
from pipeline.records.summaries import FileSummary, Summary

VALUES: dict[str, list[Any]] = {
    "kind": ["train"] * 9 + ["held_out", "point", "point", "figure", "metric", "sample", "error", 3, None],
    "step": [*range(9), 2.0, -1, 1.5, True, "1", 10**30], "time": [1.5, 2, "nan", None, float("nan")],
    "loss": [0.5, 1.25, -3, 0, "nan", "inf", float("inf"), "text", None, True, [1], {"a": 1}, 10**25, 10**400],
    "value": [0.5, 7, "nan", "-inf", "seven", None, 2**70], "rate": [0.1, 1e-3], "text": ["é", "\ud800", "}\n{", "[1]"],
    "name": ["rss", "cpu", "loss", 5], "of": ["train", "point"], "unit": ["B", "nats", "", 1],
    "better": ["lower", "higher", "", "more"], "member": [0, 1, 2, -1, "0"], "stage": ["load", 1], "v": [1, 1, 2, True],
}  # fmt: skip
TORN = (
    b'{"kind": "train", "step": 9', b"", b"  ", b"[1]", b"7", b"null", b'"kind"', b"\xff", b'{"kind": "x"}}', b"[[[",
    b'{"kind": "train", "a": [{}', b"{}]}", b'{"kind": "a"},{"kind": "b"}', b'{"kind": "train", "loss": -0}',
)  # fmt: skip
LIKELY = {"train": ("step", "time", "loss"), "point": ("name", "value"), "metric": ("of", "name", "unit", "better")}


def some_lines(rng: random.Random, count: int) -> bytes:
    """Lines as they are, mostly, and as they should not be."""
    found = []
    for _ in range(count):
        if rng.random() < 0.04:
            found.append(rng.choice(TORN))
            continue
        odd = rng.random() < 0.2
        row = {"kind": rng.choice(VALUES["kind"] if odd else VALUES["kind"][:13])}
        names = [*LIKELY.get(str(row["kind"]), ("step", "loss")), *rng.sample([*VALUES][1:], rng.choice((0, 0, 1, 3)))]
        row |= {name: rng.choice(VALUES[name] if odd else VALUES[name][:2]) for name in dict.fromkeys(names)}
        found.append(json.dumps(row).encode())
    return b"\n".join([*found, b""])


def one_by_one(file: Path) -> tuple[list[Any], dict[Any, list[Any]], list[int]]:
    """Rows, values of each metric with line, step and time, and the lines that are none; as it was first written."""
    found, values, wrong = [], {}, []
    for number, line in enumerate(file.read_bytes().split(b"\n")[:-1], 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            wrong.append(number)
            continue
        if fault_of_line(row) is not None:
            wrong.append(number)
            continue
        found.append(row)
        for name, value in values_of(row):
            key = row["kind"], name, row.get("member")
            values.setdefault(key, []).append((number, value, row.get("step"), row.get("time")))
    return found, values, wrong


def plain(value: Any) -> str:
    """For comparisons: nan equals itself, and what 64 bits do not hold is a float."""
    return re.sub(r"\b\d{20,60}\b", lambda whole: repr(float(whole[0])), repr(value))


@pytest.mark.parametrize("seed", range(60))
def test_columns_are_what_one_line_after_another_gives(tmp_path: Path, seed: int, monkeypatch: Any) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(points, "BLOCK_NBYTES", rng.choice([200, 3000, 1 << 20]))
    file, at = tmp_path / "metrics.jsonl", Position()
    file.write_bytes(some_lines(rng, rng.choice([3, 40, 400])))
    found, values, wrong = one_by_one(file)
    assert plain([*rows(file, at)]) == plain(found)
    assert at.damaged == len(wrong)
    assert [int(said.removeprefix(f"{file}:").partition(":")[0]) for said in at.problems] == wrong[:100]
    seen: dict[Any, list[Any]] = {}
    for one in blocks(file):
        firsts = [column.lines[0] for column in columns(one)]
        assert firsts == sorted(firsts)
        for column in columns(one):
            assert all(a < b for a, b in pairwise(column.lines))
            four = zip(column.lines, column.values.tolist(), column.steps, column.times, strict=True)
            seen.setdefault(column.series, []).extend(four)
    assert plain(seen) == plain(values)


@pytest.mark.parametrize("seed", range(20))
def test_summaries_are_what_one_value_after_another_gives(tmp_path: Path, seed: int, monkeypatch: Any) -> None:
    rng = random.Random(1000 + seed)
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(some_lines(rng, 300))
    at = Position()
    series: dict[Any, Summary] = {}
    for row in rows(file, at):
        for name, value in values_of(row):
            key = row["kind"], name, row.get("member")
            if key not in series:
                said = at.type_of(key[0], name)
                series[key] = Summary(*key, "", said.unit, said.better)
            one = series[key]
            one.add(np.array([value]))
            one.step, one.time = row.get("step"), row.get("time")
            if "unit" in row:
                one.unit, one.better = row["unit"], row.get("better", "")
    for nbytes in (300, 1 << 20):
        monkeypatch.setattr(points, "BLOCK_NBYTES", nbytes)
        found = FileSummary().read(file)
        assert [s.to_json() for s in found.series.values()] == [s.to_json() for s in series.values()]
        assert found.at == at


def test_no_column_holds_what_its_lines_do_not() -> None:
    held = 0
    for kind in ("train", "point", "figure", METRIC):
        rules = schemas.schema("metrics")["$defs"][kind if kind != "train" else "row"]
        least = {name: "lower" if name == "better" else 1 if name == "value" else "x" for name in rules["required"]}
        for name in rules["properties"]:
            for value in VALUES[name]:
                row = {**least, "kind": kind, name: value}
                if name != "kind" and columns_hold(kind, {key: [one] for key, one in row.items()}):
                    assert fault_of_line(row) is None
                    held += 1
            assert columns_hold(kind, {k: [v] * 2 for k, v in {**least, "kind": kind, name: VALUES[name][0]}.items()})
    assert held > 50

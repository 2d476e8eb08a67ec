"""What is compared of runs is kept in the index, believed while their files are as they were, and the same without."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.records.index import NAME
from pipeline.records.registry import all_runs
from pipeline.reporting.compare import kept
from pipeline.reporting.compare.kept import all_measured
from pipeline.reporting.compare.measures import measured
from tests.cases.many_runs import make_run


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """A run of each kind that is hard to keep: not a number, infinite, of a name that is no Unicode, not complete."""
    outputs = tmp_path / "outputs"
    for i, name in enumerate(("plain", os.fsdecode(b"\xff"), "nan")):
        make_run(outputs / name, i, points=4)
    make_run(outputs / "cut", 9, points=3, state="interrupted")
    file = outputs / "nan" / "manifest.json"
    manifest = json.loads(file.read_text())
    figures = manifest["results"]["evaluate"]["figures"]
    figures["KL"]["value"], figures["perplexity"]["value"] = "nan", "inf"
    manifest["backends"] = [["matmul", "xla"], ["matmul", "native"]]
    file.write_text(json.dumps(manifest))
    return outputs


def said(outputs: Path) -> Any:
    return pipeline.compare("*", outputs=outputs, baseline="plain").as_json()


def test_from_the_index_as_from_the_files(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = said(outputs)
    read = []
    monkeypatch.setattr(kept, "measured", lambda run, timed: read.append(run.name) or measured(run, timed=timed))
    assert said(outputs) == first
    assert read == ["cut"]  # what is not complete is looked at each time
    monkeypatch.setattr(kept, "MANY", 1)  # all rows at once
    assert said(outputs) == first
    assert read == ["cut"] * 2
    (outputs / NAME).unlink()
    assert said(outputs) == first
    assert len(read) == 6


@pytest.mark.parametrize("name", ["manifest.json", "run.json", "config.yaml", "metrics.jsonl", "metrics.1.jsonl"])
def test_a_file_that_changed_is_read_again(outputs: Path, name: str) -> None:
    def found() -> dict[str, str]:
        return {one.run.name: repr((one.metrics, one.facts, one.errors)) for one in all_measured(all_runs(outputs))}

    before = found()
    file = outputs / "plain" / name
    if name == "config.yaml":
        file.write_text("seed: 77\n")
    elif name == "run.json":
        file.write_text(file.read_text().replace("module_1", "module_x"))
    elif name == "manifest.json":
        file.write_text(file.read_text().replace('"tokens', '"x').replace('"sq_signal": 70.0', '"sq_signal": 71.0'))
    else:
        with file.open("a") as lines:
            lines.write('{"kind": "train", "step": 9, "loss": -5.0}\n')
    after = found()
    assert {name for name in before if before[name] != after[name]} == {"plain"}


def test_a_folder_that_nobody_listed_gets_no_index(outputs: Path, tmp_path: Path) -> None:
    make_run(tmp_path / "elsewhere" / "a", 5)
    pipeline.compare(str(outputs / "plain"), str(tmp_path / "elsewhere" / "a"), outputs=outputs)
    assert [p.name for p in (tmp_path / "elsewhere").iterdir()] == ["a"]
    assert not (outputs / NAME).exists()

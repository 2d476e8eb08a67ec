"""`make bench`: the list, what is run of it and where, what goes on after an interruption, and the pages."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.bench.against import NAME
from pipeline.config import line
from pipeline.config.options import options
from pipeline.errors import ConfigError, StorageError
from pipeline.planning.rates import machine
from pipeline.records.run import MANIFEST
from plugins.bench import suite
from tests.cases.bench_pages import faults
from tests.cli.run import ROOT
from tests.unit.bench.test_page import RECORDS

LIST = """
model: {needs: there.gguf, command: [bench, there.gguf]}
ops: {needs: made, made_by: [make.py], command: [bench, ops]}
scale: {command: [bench, scale]}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("model", "ops", "scale"):
        assert RECORDS[name]["benchmark"], "the page is of these"
    (tmp_path / suite.LIST).parent.mkdir(parents=True)
    (tmp_path / suite.LIST).write_text(LIST)
    (tmp_path / suite.README).write_text(f"before\n{suite.BEGIN}old\n{suite.END}after\n")
    (tmp_path / "there.gguf").touch()
    return tmp_path


@pytest.fixture
def ran(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Words of each command, and by `codes` how it ends; its record is that of its name."""
    told: dict[str, Any] = {"words": [], "codes": {}}

    def run(words: list[str], cwd: Path, check: bool) -> Any:
        told["words"].append(words[1:])
        if words[1] == "make.py":
            (cwd / "made").touch()
            return SimpleNamespace(returncode=0)
        folder = cwd / next(w.partition("=")[2] for w in words if w.startswith("paths.run="))
        code = told["codes"].get(folder.name, 0)
        if code in suite.MEASURED:
            folder.mkdir(parents=True)
            (folder / MANIFEST).touch()
            at = {"kind": machine(), "threads": 2, "memory": 1, "system": "", "python": "", "load": 0.0}
            rows = [*RECORDS[folder.name]["rows"]]
            rows.append({**rows[0], "engine": "bad", "state": "failed", "why": f"no such file: {cwd}/x", "metrics": {}})
            (folder / NAME).write_text(json.dumps(RECORDS[folder.name] | {"machine": at, "rows": rows}))
        return SimpleNamespace(returncode=code)

    monkeypatch.setattr("subprocess.run", run)
    return told


def names(told: dict[str, Any]) -> list[str]:
    return [next(w for w in words if w.startswith("paths.run=")) for words in told["words"] if "pipeline" in words]


def test_all_of_the_list_in_its_order_and_the_pages_of_it(root: Path, ran: dict[str, Any]) -> None:
    assert suite.main([], root) == 0
    assert names(ran) == [f"paths.run=outputs/suite/{name}" for name in ("model", "ops", "scale")]
    assert ["make.py"] in ran["words"]
    kept = {f.stem: json.loads(f.read_text()) for f in (root / suite.PAGES).iterdir()}
    assert faults((root / suite.PAGE).read_text(), kept) == []
    assert len((root / suite.PAGES / "scale.json").read_text().splitlines()) < 20, "a row a line"
    assert str(root) not in (root / suite.PAGES / "ops.json").read_text()
    readme = (root / suite.README).read_text()
    assert readme.startswith(f"before\n{suite.BEGIN}|")
    assert readme.endswith(f"{suite.END}after\n")
    assert "old" not in readme
    assert suite.main([], root) == 0
    assert names(ran)[3:] == [f"paths.run=outputs/suite-2/{name}" for name in ("model", "ops", "scale")]
    assert "bench.against=docs/benchmarks/ops.json" in ran["words"][-2], "the next one is held against it"


def test_an_interrupted_one_goes_on(root: Path, ran: dict[str, Any]) -> None:
    ran["codes"] = {"ops": 130}
    assert suite.main([], root) == 130
    assert not (root / suite.PAGE).exists()
    ran["codes"] = {}
    assert suite.main([], root) == 0
    assert names(ran) == [f"paths.run=outputs/suite/{name}" for name in ("model", "ops", "ops", "scale")]


def test_what_fails_is_said_and_the_others_are_measured(
    root: Path, ran: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "there.gguf").unlink()
    ran["codes"] = {"ops": 5, "scale": 9}
    assert suite.main([], root) == 9
    said = capsys.readouterr().err
    assert "model: needs there.gguf" in said
    assert "ops: exit code 5" in said
    assert [f.stem for f in (root / suite.PAGES).iterdir()] == ["scale"]
    ran["codes"] = {}
    suite.main([], root)
    assert names(ran)[2:] == ["paths.run=outputs/suite/ops"], "the rest is there"


def test_one_alone_has_folders_of_its_own(root: Path, ran: dict[str, Any]) -> None:
    assert [suite.main(["scale"], root), suite.main(["scale"], root)] == [0, 0]
    assert names(ran) == ["paths.run=outputs/suite-scale/scale", "paths.run=outputs/suite-scale-2/scale"]
    (root / suite.PAGE).unlink()
    assert suite.main(["--pages"], root) == 0
    assert len(names(ran)) == 2
    assert "## scale" in (root / suite.PAGE).read_text()


@pytest.mark.parametrize(("args", "said"), [(["opps"], "'ops'"), (["--page"], "--pages alone"), (["-x"], "-x")])
def test_what_is_typed_wrong(root: Path, ran: dict[str, Any], args: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        suite.main(args, root)
    assert not ran["words"]


def test_a_readme_without_a_place_is_left_alone(root: Path) -> None:
    (root / suite.README).write_text("nothing\n")
    with pytest.raises(StorageError, match="begin: make bench"):
        suite.main(["--pages"], root)


def test_the_list_is_of_commands_that_there_are() -> None:
    known = {group: options(group) for group in ("model", "flow", "quant", "export")}
    flows = {name.partition("_")[2] for name in known["flow"] if name.startswith("bench_")}
    for one in suite.listed(ROOT / suite.LIST):
        assert one.command[0] == "bench"
        if one.command[1] not in {"ops", "convert", "train", "scale"} - flows:
            assert line.read(one.command, known).verb == "run", shlex.join(one.command)


def held_to_pages(change: Callable[[str], str]) -> list[str]:
    """Faults of BENCHMARKS.md as it is in this checkout, changed."""
    records = {s.name: s.record for s in suite.sections(suite.listed(ROOT / suite.LIST), ROOT)}
    return faults(change((ROOT / suite.PAGE).read_text(encoding="utf-8")), records)


def test_our_pages_are_what_our_figures_are() -> None:
    """And a figure that is changed by hand is found."""
    assert {path: path.read_text(encoding="utf-8") for path in suite.pages(ROOT)} == suite.pages(ROOT)
    assert held_to_pages(str) == []
    assert held_to_pages(lambda text: re.sub(r"(\d[\d.,]*) MiB ±", r"1\1 MiB ±", text, count=1))


def test_our_figures_name_no_place_of_a_machine() -> None:
    for file in (ROOT / suite.PAGES).iterdir():
        assert not [word for word in ("/home/", "/root/", "/usr/", "/work/") if word in file.read_text()], file.name
        assert file.stem in [one.name for one in suite.listed(ROOT / suite.LIST)]
        assert file.stat().st_size < 400_000

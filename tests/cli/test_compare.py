"""`compare` and `runs` as people type them, on the two runs of a sweep: exit codes, what is said, what is written."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from pipeline.records import schemas
from tests.cli.run import MAIN, Said, pipeline

SWEEP = "sweep-gpt_oss-quant=mxfp4,int8-flow=convert"
MXFP4, INT8 = "gpt_oss-mxfp4-flow=convert", "gpt_oss-int8-flow=convert"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with outputs/ of two runs."""
    folder = tmp_path_factory.mktemp("swept")
    said = pipeline("-m", MAIN[0], "quant=mxfp4,int8", "trace=true", cwd=folder)
    assert said.code == 0, said.err
    return folder


@pytest.fixture
def there(swept: Path, tmp_path: Path) -> Path:
    """Both of them, for those who change something."""
    shutil.copytree(swept, tmp_path / "copy")
    return tmp_path / "copy"


def names(said: Said) -> set[str]:
    assert said.code == 0, said.err
    return {row["name"] for row in csv.DictReader(said.out.splitlines())}


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        ([SWEEP], 0, "✗ quant=int8 is worse than quant=mxfp4 in bits a weight, size"),
        ([MXFP4, "--fail-if", "size>2MiB", "--fail-if", "RMSE>0", "--", INT8], 0, "Different"),
        ([SWEEP, "--fail-if", "size>1MiB"], 9, "allowed: 1.0 MiB worse"),
        ([SWEEP, "--fail-if", "bits_a_weight>5%", "--format", "csv"], 9, "allowed: 5 % worse"),
        ([SWEEP, "--baseline", INT8, "--fail-if", "size>0"], 0, "the others are held against it"),
        ([SWEEP, "--fail-if", "export_seconds>1e6%", "--fail-if", "quantize_seconds>1d"], 0, "Runs"),
        ([SWEEP, "--fail-if", "seconds>1d"], 2, "no run has a metric 'seconds'"),  # jobs begin with their sweep
        ([SWEEP, "--fail-if", "KL>1%"], 2, "no run has a metric 'KL'"),
        ([SWEEP, "--fail-if", "RMSE>1e400"], 2, "more than a number can be"),
        ([SWEEP, "--fial-if", "size>1"], 2, "did you mean '--fail-if'"),
        ([SWEEP, "--out", "x.docx"], 2, "nothing is written as .docx"),
        ([MXFP4], 2, "two at least are expected"),
        ([MXFP4, "gpt_oss-int4"], 4, "did you mean"),
    ],
)  # fmt: skip
def test_compare_ends_as_it_says(swept: Path, words: list[str], code: int, what: str) -> None:
    said = pipeline("compare", *words, cwd=swept)
    assert (said.code, what in said.out + said.err) == (code, True), said
    assert "Traceback" not in said.err
    assert sorted(p.name for p in swept.iterdir()) == ["outputs"]


def test_what_got_worse_is_folded_where_the_screen_ends(swept: Path) -> None:
    said = pipeline("compare", SWEEP, "--fail-if", "size>1MiB", cwd=swept, env={"COLUMNS": "60"})
    assert said.code == 9
    assert said.err.startswith("✗ ")
    assert [line for line in said.err.splitlines() if len(line) > 60] == []
    assert "allowed: 1.0 MiB worse" in " ".join(said.err.split())


def test_files_of_a_comparison_say_the_same(swept: Path, tmp_path: Path) -> None:
    for kind in ("csv", "json", "html"):
        said = pipeline("compare", SWEEP, "--pareto", "size,SQNR", "--out", str(tmp_path / f"c.{kind}"), cwd=swept)
        assert (said.code, said.err) == (0, "")
        assert said.out.splitlines()[-1] == str(tmp_path / f"c.{kind}")
    found = json.loads((tmp_path / "c.json").read_text())
    assert schemas.fault("comparison", found) is None
    rows = list(csv.DictReader((tmp_path / "c.csv").read_text().splitlines()))
    sizes = [row["metrics"]["size"]["mean"] for row in found["rows"]]
    assert [float(row["size [B]"]) for row in rows] == sizes
    page = (tmp_path / "c.html").read_text()
    assert all(f'data-v="{size!r}"' in page for size in sizes)
    assert found["pareto"]["front"] == [row["name"] for row in found["rows"]]


def test_runs_are_found_by_what_is_so_of_them(swept: Path) -> None:
    def listed(*words: str) -> set[str]:
        return names(pipeline("runs", "--format", "csv", *words, cwd=swept))

    assert listed() == listed(SWEEP) == listed("trace=True", "seconds<1h") == {MXFP4, INT8}
    assert listed("size<5.5MiB") == listed("quant=mxfp4") == listed("--", MXFP4) == {MXFP4}
    said = pipeline("runs", "size<1KiB", "--sort", "siez", cwd=swept)
    assert (said.code, "did you mean 'size'" in said.err) == (2, True)
    said = pipeline("runs", "size<nan", cwd=swept)
    assert (said.code, "nothing is less, more or equal to it" in said.err) == (2, True)
    shown = pipeline("runs", "show", INT8, cwd=swept)
    assert "model/" in shown.out
    assert shown.out.splitlines()[-1] == str(swept / "outputs" / INT8)


def test_runs_are_tagged_exported_and_removed(there: Path, swept: Path) -> None:
    others = sorted(swept.rglob("*"))
    assert pipeline("runs", "tag", MXFP4, "+best", "--note", "small", cwd=there).code == 0
    assert names(pipeline("runs", "tag=best", "--format=csv", cwd=there)) == {MXFP4}
    assert pipeline("runs", "export", "--out", "all.json", cwd=there).code == 0
    exported = {run["name"]: run for run in json.loads((there / "all.json").read_text())["runs"]}
    assert exported[MXFP4]["tags"] == ["best"]
    assert exported[INT8]["config"]["trace"] is True
    kept = pipeline("runs", "rm", "tag=best", cwd=there)
    assert (kept.code, "--yes removes it" in kept.err) == (2, True)
    assert pipeline("runs", "rm", "tag=best", "--yes", cwd=there).code == 0
    assert names(pipeline("runs", "--format=csv", cwd=there)) == {INT8}
    assert not (there / "outputs" / MXFP4).exists()
    assert sorted(swept.rglob("*")) == others, "a copy is removed, and not what it is a copy of"

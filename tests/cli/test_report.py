"""`report` writes one page, says where, and what is wrong with what was asked of it."""

from pathlib import Path

import pytest

from tests.cases import written_runs
from tests.cli.run import Said, pipeline


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    written_runs.sweep(folder, jobs=3)
    return folder


def report(outputs: Path, *words: str) -> Said:
    return pipeline("report", *words, f"paths.outputs={outputs}", cwd=outputs)


def test_a_page_of_all_runs_beside_them_and_of_one_in_its_folder(outputs: Path) -> None:
    said = report(outputs)
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[0].startswith("3 runs, ")
    assert said.out.splitlines()[-1] == str(outputs / "report.html")
    assert (outputs / "report.html").stat().st_size > 10_000
    one = report(outputs, "job1")
    assert one.out.splitlines()[-1] == str(outputs / "job1/report.html")


def test_out_and_patterns(outputs: Path, tmp_path: Path) -> None:
    said = report(outputs, "job[01]", "--out", str(tmp_path / "new/it's.html"))
    assert said.code == 0, said.err
    assert said.out.startswith("2 runs, ")
    assert b"job2" not in (tmp_path / "new/it's.html").read_bytes()
    assert report(outputs, "job1", "--out", str(tmp_path)).out.splitlines()[-1] == str(tmp_path / "report.html")


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["jbo1"], 4, "did you mean 'job1'"),
        (["--ot=x"], 2, "did you mean '--out'"),
        (["--out"], 2, "--out"),
        (
            ["job1", "--out", "x.pdf"],
            2,
            ".pdf is no ending of a page; a name that ends in .html or .htm (x.html)",
        ),
        (["job1", "--out", "best"], 2, "best: there is no such folder; a name that ends in"),
    ],
)
def test_mistakes(outputs: Path, words: list[str], code: int, what: str) -> None:
    said = report(outputs, *words)
    assert said.code == code, said
    assert what in said.err
    assert "Traceback" not in said.err


def test_where_there_is_no_run(tmp_path: Path) -> None:
    said = report(tmp_path)
    assert said.code == 4
    assert "there is no run in it" in said.err

"""80 columns are enough: no table and no line that is printed is wider, but for paths and what is to be copied."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.run import MAIN, pipeline

SHORT = ("evaluate.windows.tokens=64", "sampling.max_tokens=4")


def too_wide(text: str, columns: int) -> list[str]:
    """Lines that are wider, though they could be folded: with a space before their last word, which is no path."""
    return [
        line for line in text.splitlines() if len(line) > columns and "/" not in line.split()[-1] and line[0] != "'"
    ]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run in it."""
    folder = tmp_path_factory.mktemp("here")
    said = pipeline(*MAIN, "flow=full", *SHORT, cwd=folder, env={"COLUMNS": "80"})
    assert said.code == 0, said.err
    (folder / "said.txt").write_text(said.out)
    return folder


def test_a_run(here: Path) -> None:
    said = (here / "said.txt").read_text()
    for title in ("Stages", "Quantization error", "Perplexity", "Text", "Speed", "Planned and measured"):
        assert title in said
    assert too_wide(said, 80) == []
    name = "gpt_oss-mxfp4-flow=full-evaluate.windows.tokens=64-sampling.max_tokens=4"
    folder = here / "outputs" / name
    assert said.splitlines()[-2:] == [str(folder / "model"), str(folder)]


@pytest.mark.parametrize(
    "words",
    [
        ("plan", *MAIN, "flow=full", *SHORT),
        ("plan", *MAIN, "flow=generate", "mesh=expert", "mesh.axes.expert=4", "engine.device=cpu"),
        ("why", *MAIN, "flow=full", *SHORT, "quant.scale_rule=even"),
        ("plan", "-m", MAIN[0], "quant=mxfp4,int8", "export=plain,orbax"),
        ("gc",),
    ],
    ids=["plan", "mesh", "why", "sweep", "gc"],
)
@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.brief(each=("words",))
def test_what_is_asked_before(here: Path, words: Sequence[str], columns: int) -> None:
    said = pipeline(*words, cwd=here, env={"COLUMNS": str(columns)})
    assert said.code == 0, said.err
    assert said.out
    assert too_wide(said.out, columns) == []


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("verify", "--help"),
        ("explain", "quant.scale_rule"),
        ("explain", "calibrate"),
        ("runs",),
    ],
    ids=lambda words: words[0],
)
def test_what_is_said_of_runs_and_of_itself(here: Path, words: Sequence[str]) -> None:
    said = pipeline(*words, cwd=here, env={"COLUMNS": "80"})
    assert too_wide(said.out, 80) == []
    assert too_wide(said.err, 80) == []


LATE = 0.3  # seconds from when a job is done until it is written down


def by_time(here: Path, flow: str) -> list[Path]:
    """Manifests of the runs of a flow, in the order in which they ended."""
    return sorted(here.glob(f"outputs/gpt_oss-*{flow}*/manifest.json"), key=lambda file: file.stat().st_mtime_ns)


def test_a_sweep_says_a_line_for_each_job_and_a_table_in_the_end(here: Path) -> None:
    sweep = ("-m", MAIN[0], "quant=mxfp4,int8", "flow=evaluate", SHORT[0])
    said = pipeline(*sweep, cwd=here, env={"COLUMNS": "80"})
    assert said.code == 0, said.err
    assert too_wide(said.out, 80) == []
    lines = [line for line in said.err.splitlines() if line.startswith("[")]
    assert [line.split(":")[0] for line in lines] == ["[1/2] quant=mxfp4", "[2/2] quant=int8"]
    assert said.out.count("┏") == 1  # one table
    assert "unquantized" in said.out
    # They are evaluated in turns: the second one's time is not from when the first one's began.
    first, second = (json.loads(manifest.read_text()) for manifest in by_time(here, "flow=evaluate"))
    assert second["started"] > first["started"] + first["seconds"] - LATE


def test_text_is_shown_once_where_both_streams_are_one_place(here: Path) -> None:
    words = (*MAIN, "flow=generate", "sampling.max_tokens=8", "paths.run=once", "paths.outputs=once.outputs")
    both = pipeline(*words, cwd=here, env={"COLUMNS": "80"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert both.code == 0, both.out
    [text] = json.loads((here / "once/manifest.json").read_text())["results"]["generate"]["texts"]
    assert both.out.count(text.strip()[:30]) == 1

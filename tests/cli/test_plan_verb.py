"""The verb `plan` says what would stop the run, without touching anything."""

from pathlib import Path

from tests.cli.run import pipeline

MAIN = ("+model=gpt_oss", "quant=mxfp4", "paths.run=here")


def test_a_target_in_the_way_and_another_run_are_said(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    result = pipeline("plan", *MAIN, "export.path=taken", cwd=tmp_path)
    assert result.code == 3
    assert "taken exists already" in result.err
    assert not (tmp_path / "here").exists()


def test_a_complete_run_is_no_obstacle_to_itself_but_to_others(tmp_path: Path) -> None:
    assert pipeline(*MAIN, cwd=tmp_path).code == 0
    assert pipeline("plan", *MAIN, cwd=tmp_path).code == 0
    other = pipeline("plan", *MAIN, "quant.scale_rule=even", cwd=tmp_path)
    assert other.code == 3
    assert "holds a run with other stages" in other.err

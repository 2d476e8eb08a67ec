"""What `runs rm` takes away, and what it leaves: whatever no run put there."""

from pathlib import Path

import pytest

from pipeline.errors import StorageError
from pipeline.records.run import read
from pipeline.running.removing import carry_out, removal
from tests.cases.many_runs import make_run


def test_a_folder_whose_records_are_another_program_s_is_left_alone(tmp_path: Path) -> None:
    for name in ("manifest.json", "run.json"):
        folder = tmp_path / name
        (folder / "best").mkdir(parents=True)
        (folder / "best" / "checkpoint.bin").write_bytes(b"weights")
        (folder / name).write_text('{"fine": "tune"}')
        assert read(folder).state == "unreadable"
        with pytest.raises(StorageError, match="no record in it is ours"):
            removal(read(folder))


def test_files_of_others_in_folders_of_ours_stay(tmp_path: Path) -> None:
    make_run(tmp_path / "run", 0, points=3)
    for name in ("states/50/state/data", "states/notes.txt", "best/100/progress/data", ".model.weightmill.lock"):
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_text("text")
    found = removal(read(tmp_path / "run"))
    assert [str(p.relative_to(tmp_path / "run")) for p in found.stays] == ["states/notes.txt"]
    [said] = carry_out([found])
    assert said.endswith("but for states/notes.txt, which no run put there")
    assert [p for p in (tmp_path / "run").rglob("*") if p.is_file()] == [tmp_path / "run/states/notes.txt"]

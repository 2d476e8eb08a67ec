"""Where a page goes, and which is taken away."""

from pathlib import Path

import pytest

from pipeline.errors import StorageError
from pipeline.reporting.html import page
from pipeline.reporting.html.place import forgotten, place_of
from tests.cases import written_runs


def test_a_page_or_a_folder(tmp_path: Path) -> None:
    (tmp_path / "x.html").mkdir()
    assert place_of(tmp_path / "a.HTM") == tmp_path / "a.HTM"
    assert place_of(tmp_path) == tmp_path / "report.html"
    assert place_of(f"{tmp_path}/new/") == tmp_path / "new/report.html"
    with pytest.raises(StorageError, match="is a folder"):
        place_of(tmp_path / "x.html")


def test_only_pages_of_ours_are_taken_away(tmp_path: Path) -> None:
    run = written_runs.write(tmp_path / "a")
    page.write([run], run.folder / "report.html")
    forgotten(run.folder)
    assert not (run.folder / "report.html").exists()
    (run.folder / "report.html").write_text("<!DOCTYPE html><title>mine</title>")
    forgotten(run.folder)
    assert (run.folder / "report.html").exists()

"""tests/cases/brief.py: which cases of a grid are left in, and what is said of a marker that has gone stale."""

import os
from pathlib import Path

import pytest

from tests.cases import brief

GRID = """
import pytest

@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", ["int4", "mxfp4"])
@pytest.mark.brief({})
def test_grid(name, size): ...
"""


class Marked:
    """Marks what was collected, and keeps what is left in."""

    left_in: tuple[str, ...] = ()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        brief.mark(items)
        self.left_in = tuple(item.callspec.id for item in items if not item.get_closest_marker("repeats"))


def collect(folder: Path, source: str, chosen: str = "") -> tuple[int, tuple[str, ...]]:
    """The exit code of pytest, and the ids of what is left in."""
    module = folder / f"test_{folder.name}.py"  # by a name of its own: Python has one module of each
    module.write_text(source)
    asked, marked = [f"{module.name}{chosen}"], Marked()
    options = ["--collect-only", "-q", "--import-mode=importlib", "-c", os.devnull, "--rootdir", ".", "-W", "ignore"]
    options += [f"-pno:{plugin}" for plugin in ("cacheprovider", "faulthandler")]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return int(pytest.main([*options, *asked], plugins=[marked])), marked.left_in


@pytest.mark.parametrize(
    ("arguments", "left_in"),
    [
        ("", ("int4-1", "int4-3", "mxfp4-2")),
        ("2", ("int4-1", "int4-2")),
        ("'mxfp4-2'", ("mxfp4-2",)),
        ("each=['size']", ("int4-1", "int4-3", "mxfp4-2")),
        ("'int4-3', when=lambda size: size == 1", ("int4-1", "int4-3", "mxfp4-1")),
    ],
)
def test_what_is_left_in(tmp_path: Path, arguments: str, left_in: tuple[str, ...]) -> None:
    code, found = collect(tmp_path, GRID.format(arguments))
    assert code == pytest.ExitCode.OK
    assert found == left_in


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (GRID.format("'mxfp4-2', 'int5-1'"), "brief names int5-1, of which there is no case; did you mean 'int4-1'?"),
        (GRID.format("7"), "brief(7) asks for more than the 6 cases that there are"),
        (GRID.format("when=lambda size: size > 3"), "brief leaves in none of 6 cases"),
        (GRID.format("when=lambda sizes: True"), "parameters are name, size, not sizes"),
        (GRID.format("each=['dtype']"), "parameters are name, size, none of dtype"),
        (GRID.format("every=2"), "knows each, when, and no every"),
        (GRID.format("1)\n@pytest.mark.brief('int4-1'"), "brief is there twice"),
        ("import pytest\n@pytest.mark.brief(1)\ndef test_alone(): ...", "test_alone: brief chooses among cases"),
    ],
)
def test_a_stale_marker_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str], source: str, said: str) -> None:
    code, _ = collect(tmp_path, source)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert said in capfd.readouterr().err


def test_a_case_that_is_asked_for_by_its_id_runs_alone(tmp_path: Path) -> None:
    code, _ = collect(tmp_path, GRID.format("'mxfp4-2'"), "::test_grid[int4-1]")
    assert code == pytest.ExitCode.OK

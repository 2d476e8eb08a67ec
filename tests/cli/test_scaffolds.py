"""new-method, new-dialect, new-kernel, new-family: what they write passes its contract, and runs as they say."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config.scaffolds import SCAFFOLDS
from pipeline.errors import ConfigError
from tests.cases.model_runs import quick_environment
from tests.cli.run import pipeline


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[list[str], str]]]:
    """A folder with one of each kind in `mine`, and of each what is typed to run it, and the file of its test."""
    folder, found = tmp_path_factory.mktemp("written"), {}
    for kind in SCAFFOLDS:
        said = pipeline(f"new-{kind}", f"my_{kind}", "--dir", "mine", cwd=folder)
        assert said.code == 0, said.err
        assert all((folder / file).is_file() for file in re.findall("wrote (.*)", said.out))
        command, test = (shlex.split(line) for line in said.out.partition("next:\n")[2].splitlines())
        found[kind] = command[3:], test[-1]
    return folder, found


def test_what_is_written_passes_its_contract(written: tuple[Path, dict[str, tuple[list[str], str]]]) -> None:
    folder, found = written
    tests = [test for _, test in found.values()]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-W", "error", "-p", "no:cacheprovider", *tests],
        cwd=folder, env={**os.environ, **quick_environment()}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert {line.partition("::")[0] for line in done.stdout.splitlines() if " PASSED" in line} == {*tests}


@pytest.mark.parametrize("kind", SCAFFOLDS)
def test_what_is_written_runs(kind: str, written: tuple[Path, dict[str, tuple[list[str], str]]]) -> None:
    folder, found = written
    if kind != "family":  # of which there is no checkpoint
        ran = pipeline(*found[kind][0], "progress=false", cwd=folder)
        assert ran.code == 0, ran.err
    again = pipeline(f"new-{kind}", f"my_{kind}", "--dir", "mine", cwd=folder)
    assert again.code == 2


def test_names_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.config.scaffolds import new

    monkeypatch.chdir(tmp_path)
    for args, said in {
        ("int4",): "a method 'int4' is there already",
        ("Mine",): "did you mean 'mine'",
        (): "new-method NAME",
    }.items():
        with pytest.raises(ConfigError, match=said):
            new("method", [*args])
    assert not [*tmp_path.iterdir()]

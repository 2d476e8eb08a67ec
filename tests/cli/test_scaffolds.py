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


@pytest.mark.parametrize("kind", SCAFFOLDS)
def test_what_is_written_passes_its_contract_and_runs(kind: str, tmp_path: Path) -> None:
    said = pipeline(f"new-{kind}", "my_own", "--dir", "mine", cwd=tmp_path)
    assert said.code == 0, said.err
    written = re.findall("wrote (.*)", said.out)
    assert all((tmp_path / file).is_file() for file in written)
    command, test = (line.strip() for line in said.out.partition("next:\n")[2].splitlines())
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", shlex.split(test)[-1]],
        cwd=tmp_path, env={**os.environ, **quick_environment()}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout
    assert " passed" in found.stdout
    if kind != "family":  # of which there is no checkpoint
        ran = pipeline(*shlex.split(command)[3:], "progress=false", cwd=tmp_path)
        assert ran.code == 0, ran.err
    again = pipeline(f"new-{kind}", "my_own", "--dir", "mine", cwd=tmp_path)
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

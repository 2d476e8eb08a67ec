"""One source, and one run of it that nothing disturbed, for all tests of this folder."""

import os
import shutil
from pathlib import Path

import pytest

from tests.cases import big_gpt_oss
from tests.cases.resumed import SIZES, command
from tests.cases.runs import after_chunks, digests
from tests.cli.run import end, start


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    return big_gpt_oss.write(tmp_path_factory.mktemp("source"), SIZES)


@pytest.fixture
def own_source(source, tmp_path):
    """A source that a test may spoil; links cost nothing."""
    return Path(shutil.copytree(source, tmp_path / "own", copy_function=os.link))


@pytest.fixture(scope="session")
def undisturbed(source, tmp_path_factory):
    """A run that nothing disturbed; its journal is kept, and what it was."""
    run = tmp_path_factory.mktemp("undisturbed")
    process = start(*command(source, run))
    after_chunks(run, 1, process)
    for name in ("journal.jsonl", "run.json"):  # as they are until the run ends
        os.link(run / name, run / f"{name}.kept")
    assert end(process).code == 0
    return run


@pytest.fixture
def expected(undisturbed):
    return digests(undisturbed / "model")


@pytest.fixture
def nearly(undisturbed, tmp_path):
    """The run as it stands when it is killed after its last rename and before its manifest."""
    run = Path(shutil.copytree(undisturbed, tmp_path / "nearly"))
    for name in ("journal.jsonl", "run.json"):
        (run / f"{name}.kept").rename(run / name)
    (run / "manifest.json").unlink()
    old, new = str(undisturbed), str(run)
    text = (run / "run.json").read_text()
    assert old not in text  # where a run lies is not what it is
    assert new not in text
    return run

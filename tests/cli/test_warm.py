"""A command that is forked is a command that is started: what it says, how it ends, where it is, and that it ends."""

import os
from pathlib import Path

import psutil
import pytest

from tests.cli import warm
from tests.cli.run import MAIN, ROOT, end, pipeline, start

SOURCE = ROOT / "plugins/models/gpt_oss/tiny"


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("plan", *MAIN, "model.source=${oc.env:WHERE}"), 0),
        ((*MAIN, "model.source=here/nothing"), 4),
        (("gc", "--delet"), 2),
        (("--help",), 0),
    ],
)
def test_it_says_what_a_started_one_says(tmp_path: Path, args: tuple[str, ...], code: int) -> None:
    env = {"WHERE": str(SOURCE)}
    assert warm.serves(args, tmp_path, {**os.environ, **env})
    forked, started = pipeline(*args, cwd=tmp_path, env=env), end(start(*args, cwd=tmp_path, env=env))
    assert (forked.code, forked.err) == (started.code, started.err)
    lines = [[line for line in said.out.splitlines() if not line.startswith("time ")] for said in (forked, started)]
    assert len(lines[0]) > 10 or code
    kept = [[line for line in said if "peak memory" not in line and "dask.memory" not in line] for said in lines]
    assert kept[0] == kept[1]
    assert forked.code == code


@pytest.mark.parametrize("name", ["PYTHONPATH", "LC_ALL", "LD_PRELOAD"])
def test_what_python_reads_as_it_starts_is_for_a_started_one(name: str) -> None:
    assert not warm.serves((), "/", {**os.environ, name: "other"})


def test_modules_that_are_not_ours_are_for_a_started_one(tmp_path: Path) -> None:
    assert warm.serves(("plan", *MAIN), tmp_path, os.environ)
    assert warm.serves(("plan", *MAIN), ROOT, os.environ)
    assert not warm.serves(("--config-dir", "mine", "plan", *MAIN), tmp_path, os.environ)
    (tmp_path / "stages").mkdir()
    assert not warm.serves(("plan", *MAIN), os.fsencode(tmp_path), os.environ)


def test_one_that_hangs_is_killed_and_the_next_is_served(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"still running after 0.01 s.*'--help'"):
        pipeline("--help", cwd=tmp_path, timeout_s=0.01)
    assert pipeline("gc", cwd=tmp_path).code == 0
    [server] = [p for p in psutil.Process().children() if "tests.cli.warm" in p.cmdline()]
    assert server.children() == []

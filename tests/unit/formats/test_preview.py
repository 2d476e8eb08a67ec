"""Outlines of checkpoints for plans: they go with whoever made them, however that ended."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from plugins.formats.hub.preview import LEFT_S, PREFIX, outline

MAKES = "from plugins.formats.hub.preview import outline; print(outline({}, {}, lambda *_: b''), flush=True); input()"


def maker(folder: Path) -> tuple["subprocess.Popen[str]", Path]:
    """A process that has made one, and waits; and the outline, as old as one has to be to be taken for left."""
    env = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", MAKES]
    process = subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    made = Path(process.stdout.readline().strip())
    old = time.time() - 2 * LEFT_S
    os.utime(made, (old, old))
    return process, made


def test_what_a_killed_process_left_goes_and_what_is_used_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (killed, left), (living, used), (ending, gone) = (maker(tmp_path) for _ in range(3))
    killed.kill()
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    ending.communicate("\n")
    assert [p.exists() for p in (left, used, gone)] == [True, True, False]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    new = outline({}, {}, lambda *_: b"")
    assert {*tmp_path.iterdir()} == {used, new}
    assert new.name.startswith(PREFIX)
    living.communicate("\n")
    assert not used.exists()

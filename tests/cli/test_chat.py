"""`chat` as people use it: on a terminal, where Ctrl-C ends an answer and not the program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import caches
from tests.cases.model_runs import quick_environment
from tests.cases.terminals import Terminal
from tests.cli.run import ROOT

SHORT = ["--quant", "mxfp4", "sampling.max_tokens=2000"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads a pseudo-terminal as Linux has it")
def test_a_chat_on_a_terminal(tmp_path: Path) -> None:
    """An answer is ended by Ctrl-C, and the next one knows of it; a line is taken back; the history is kept."""
    caches.fresh(tmp_path / "cache")
    with Terminal("-m", "weightmill", "chat", "gpt_oss", *SHORT, cwd=tmp_path, **quick_environment()) as chat:
        typed = "chat model=gpt_oss quant=mxfp4 sampling.max_tokens=2000"
        assert f"python -m weightmill {typed}" in chat.until("> ")
        chat.type("The state of the Union\r")
        chat.until("Union\r\n")
        chat.until(" ")
        chat.type("\x03")
        assert "interrupted" in chat.until("\n> ")
        chat.type("half a line\x03")
        chat.until("\n> ")
        chat.type("/max_tokens 5\r")
        chat.until("\n> ")
        chat.type(" and so\r")
        assert "[5 tokens" in chat.until("\n> ")
        chat.type("/exit\r")
        assert chat.end() == 0
    history = (tmp_path / "cache/weightmill/chat_history").read_text()
    assert "The state of the Union" in history
    assert not (tmp_path / "outputs").exists()


@pytest.mark.repeats  # tests/real/test_first_hour.py has one
def test_a_chat_over_a_pipe(tmp_path: Path) -> None:
    """Answers on stdout; what cannot be answered is said, the rest is, and the exit code tells."""
    words = [sys.executable, "-m", "weightmill", "chat", "gpt_oss", "--quant", "mxfp4", "sampling.max_tokens=3"]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    caches.fresh(tmp_path / "cache")
    long = b"The state of the Union " * 500
    ended = subprocess.run(
        words,
        input=b"The state\n" + long + b'\n\xff\n"""\n/usr/bin',
        cwd=tmp_path,
        env=env,
        capture_output=True,
        check=False,
    )
    said = ended.stderr.decode()
    assert ended.returncode == 6, said
    assert said.count("[3 tokens") == 2
    assert "error: line 2: the message has" in said
    assert "error: line 3: byte 0xff" in said
    assert "error: not answered, or not done: line 2, line 3" in said
    assert ended.stdout.strip()

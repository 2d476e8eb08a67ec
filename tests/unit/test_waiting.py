"""The line that is there while something is waited for, and what is written takes its place."""

import io
import os
import sys
import time

import pytest

from pipeline import terminal
from pipeline.waiting import AFTER_S, Waiting


class Screen(io.StringIO):
    """A terminal of 30 columns."""

    def isatty(self) -> bool:
        return True


def a_screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """No fixture: pytest puts its own in place of stderr when a test begins."""
    found = Screen()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((30, 24)))
    monkeypatch.setenv("TERM", "xterm")
    return found


def shown(screen: Screen, text: str) -> None:
    """Wait until it is."""
    end = time.monotonic() + 20
    while text not in screen.getvalue():
        assert time.monotonic() < end, screen.getvalue()
        time.sleep(0.01)


def test_what_is_waited_for_is_said_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = a_screen(monkeypatch)
    note: list[str] = []
    with Waiting("loading", lambda what: f"{what[:9]}: {note[0]}" if note else "") as line:
        shown(screen, "loading · ")
        line.say("compiling something whose name is long")
        shown(screen, "\r\x1b[2Kcompiling something whose nam")
        note.append("interrupted")
        shown(screen, "\r\x1b[2Kcompiling: interrupted · ")
        line.end()
        assert screen.getvalue().endswith("\r\x1b[2K")
        length = len(screen.getvalue())
    assert len(screen.getvalue()) == length
    assert all(len(part) < 30 for part in screen.getvalue().split("\r\x1b[2K"))


def test_nothing_is_said_of_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = a_screen(monkeypatch)
    with Waiting("loading"):
        pass
    assert AFTER_S > 0
    assert screen.getvalue() == ""


def test_a_dumb_terminal_gets_no_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = a_screen(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    terminal.draw("ab")
    terminal.draw("c")
    terminal.erase()
    assert screen.getvalue() == "ab\r  \rc\r \r"


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with Waiting("loading"):
        time.sleep(AFTER_S + 0.1)
    assert pipe.getvalue() == ""


def test_what_is_written_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes, to whichever stream."""
    screen = a_screen(monkeypatch)
    read, write = os.pipe()
    monkeypatch.setattr(sys, "stdout", terminal._Stream(write, sys.stdout))
    terminal.draw("loading")
    sys.stdout.write("done")
    assert screen.getvalue() == "loading\r\x1b[2K"
    sys.stdout.flush()
    assert os.read(read, 9) == b"done"
    os.close(read)
    os.close(write)

"""Ctrl-C in a chat, whenever it comes: there is a prompt again, and nothing that was said is lost."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cases.terminals import Terminal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads a pseudo-terminal as Linux has it")

LINES = """
from pipeline.running.interrupts import Interrupts
from pipeline.running.typed import Lines
with Interrupts() as interrupts, Lines((), interrupts) as lines:
    while (typed := lines.next()) is not None:
        print("got", repr(typed.text), flush=True)
"""

CHAT = """
import time
from types import SimpleNamespace
from pipeline import terminal
from pipeline.engine import Reply
from pipeline.running import stopping
from pipeline.running.chat import chat
from plugins.engine.options import Sampling

terminal.protect()
stopping.listen()
timings = SimpleNamespace(prompt_tokens=3, new_tokens=2, decode_rate=9.0, prefill=0.1, compile=0.0)

class Talk:
    chat, channels, room = True, False, None

    def reply(self, messages, sampling, *, on_text, wanted, **variables):
        sum(range(3_000_000))  # where nobody looks
        said = ""
        for n in range(40):
            if not wanted():
                return Reply(said, "interrupted", timings, 5)
            on_text("", f"word{n} ")
            said += f"word{n} "
            time.sleep(0.01)
        return Reply(said, "end", timings, 5)

facts = {"device_nbytes": 5, "device": "cpu"}
model = SimpleNamespace(conversation=lambda chat: Talk(), facts=facts, generation={})
chat(model, Sampling(), template=None, system=None)
"""

LATE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/select.h>
#include <time.h>
int select(int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *t) {
  int (*real)(int, fd_set *, fd_set *, fd_set *, struct timeval *) = dlsym(RTLD_NEXT, "select");
  struct timespec late = {0, 10000000};
  if (n == 1) nanosleep(&late, 0);
  return real(n, r, w, e, t);
}
"""


@pytest.fixture
def late(tmp_path: Path) -> str:
    """A library with which the line editor begins to wait for keys a hundredth of a second after its prompt is there:
    so long nothing but Python's flag tells of a signal."""
    if (cc := shutil.which("cc")) is None:
        pytest.skip("no C compiler")
    (tmp_path / "late.c").write_text(LATE)
    subprocess.run([cc, "-shared", "-fPIC", "-o", tmp_path / "late.so", tmp_path / "late.c", "-ldl"], check=True)
    return str(tmp_path / "late.so")


def test_what_is_typed_is_taken_back_before_the_editor_waits(late: str, tmp_path: Path) -> None:
    """Each time: the kernel has thrown away what was typed, and nothing but the signal is left to tell."""
    with Terminal("-c", LINES, cwd=tmp_path, LD_PRELOAD=late) as program:
        program.until("> ")
        for _ in range(10):
            program.type("half a line\x03")
            program.until("\n> ", timeout_s=20)
        program.type("all of it\r")
        program.until("got 'all of it'\r\n> ")
        program.type("\x04")
        assert program.end() == 0


# Ctrl-C between Enter and what Python is told of it.
AT_ENTER = """
import builtins, os, signal
real = input
def entered(prompt):
    line = real(prompt)
    if line == "just now":
        os.kill(os.getpid(), signal.SIGINT)
    return line
builtins.input = entered
"""


def test_what_was_entered_is_in_the_history_whenever_it_comes(tmp_path: Path) -> None:
    with Terminal("-c", AT_ENTER + LINES, cwd=tmp_path) as program:
        for line in ("before", "just now", " ", "after", "after"):
            program.until("> ")
            program.type(f"{line}\r")
        program.until("got 'after'\r\n> ")
    assert "got 'just now'" not in program.shown
    assert (tmp_path / "cache/weightmill/chat_history").read_text() == "before\njust now\nafter\n"


def test_whenever_it_comes(tmp_path: Path) -> None:
    """In the time of two answers, at every twentieth of a second; then there is a prompt, and what was asked is
    in the history, also of a program that nobody ends well."""
    with Terminal("-c", CHAT, cwd=tmp_path) as program:
        program.until("> ")
        for n in range(12):
            program.type(f"question {n}\r")
            program.until(f"question {n}\r\n")
            time.sleep(0.05 * n)
            program.type("\x03")
            program.until("\n> ", timeout_s=20)
            time.sleep(0.2)  # where the answer ended first, what is typed now would be taken back
            program.type(f"/max_tokens {n + 1000}\r")  # the prompt is one that takes something
            program.until(f"\nmax_tokens {n + 1000}\r\n> ", timeout_s=20)
    assert "interrupted" in program.shown
    history = (tmp_path / "cache/weightmill/chat_history").read_text()
    assert all(f"question {n}\n" in history for n in range(12))


def test_being_told_to_end_is_no_ctrl_c(tmp_path: Path) -> None:
    """A supervisor's SIGTERM, while somebody could type."""
    with Terminal("-c", CHAT, cwd=tmp_path) as program:
        program.until("> ")
        program.signal(signal.SIGTERM)
        assert program.end(timeout_s=20) != 0

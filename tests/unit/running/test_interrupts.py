"""Ctrl-C that a chat was started to ignore is not taken."""

import os
import signal
from collections.abc import Iterator

import pytest

from pipeline.running.interrupts import Interrupts


@pytest.fixture
def ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ignored")
def test_what_is_to_be_ignored_is() -> None:
    """`weightmill chat DIR < questions &` in a script, and Ctrl-C at what runs in the foreground."""
    with Interrupts() as interrupts:
        with interrupts.answering() as wanted:
            os.kill(os.getpid(), signal.SIGINT)
            assert wanted()
        assert interrupts.typing(lambda: "typed") == "typed"
        assert not interrupts.heard
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_what_is_not_to_be_ignored_is_not() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts, interrupts.answering() as wanted:
        os.kill(os.getpid(), signal.SIGINT)
        assert not wanted()
    assert signal.getsignal(signal.SIGINT) is before

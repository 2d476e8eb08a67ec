"""Ctrl-C in a conversation: it takes back what is typed, or ends an answer, and never the program by surprise.

Python hears of a signal between two instructions of its own. What has just begun to wait for a key in C does not notice
one that came a moment before, nor one that another thread was given, until the next key. So a thread, which the C half
of Python's handler tells of every signal at once, wakes the main thread after it with another that means nothing:
SIGURG, which Go's runtime wakes its threads with, because nobody uses it and it ends nothing.
"""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

Text = TypeVar("Text", str, bytes)

WAKE = signal.SIGURG
WAKES_S = 0.02, 0.1, 0.5  # after a signal, one after another
ONE_WISH_S = 1.0  # Ctrl-C again within this much is the same wish


class TakenBack(KeyboardInterrupt):
    """What was being typed."""


class Interrupts:
    """Ctrl-C while a chat goes on, unless it was started to ignore that; a context, in the main thread.

    Attributes:
        heard: there was one that nothing came of yet; also while the main thread is in C and cannot see to it.
    """

    def __init__(self) -> None:
        self.heard = False
        self._typing = False
        self._first: float | None = None  # when the one that nothing came of came
        self._main = threading.get_ident()

    def __enter__(self) -> Self:
        read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = {WAKE: signal.signal(WAKE, lambda *_: None)}
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as a script's shell starts jobs in the background
            self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self.take)
        self._told = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._wake, args=(read,), name="interrupts", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        signal.set_wakeup_fd(self._told)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        os.close(self._write)  # which ends the thread
        self._thread.join()

    def _wake(self, read: int) -> None:
        pauses: list[float] = []
        while True:
            if not select.select([read], [], [], pauses[0] if pauses else None)[0]:
                del pauses[0]
                signal.pthread_kill(self._main, WAKE)
            elif not (said := os.read(read, 64)):
                break
            elif others := [*filter(WAKE.__ne__, said)]:
                self.heard |= signal.SIGINT in others and not self._typing
                pauses = [*WAKES_S]
        os.close(read)

    def take(self, signum: int, frame: Any) -> None:
        """The handler of Ctrl-C."""
        if self._typing:
            self._forget()
            raise TakenBack
        now = time.monotonic()
        self.heard = True
        if self._first is not None and now - self._first >= ONE_WISH_S:
            raise KeyboardInterrupt
        self._first = now if self._first is None else self._first

    def _forget(self) -> None:
        self._typing, self.heard, self._first = False, False, None

    def typing(self, read: Callable[[], Text]) -> Text:
        """What `read` gives, which waits for somebody who types.

        Raises:
            TakenBack: Ctrl-C, now or since anything was last seen to.
        """
        self._typing = True
        try:
            if self._first is not None:
                raise TakenBack
            return read()
        finally:
            self._forget()

    @contextmanager
    def answering(self) -> Iterator[Callable[[], bool]]:
        """Gives what tells whether the answer is still wanted; Ctrl-C a second time, later, ends the program."""
        self.heard = self._first is not None  # the thread may be late with one that was seen to
        try:
            yield lambda: self._first is None
        finally:
            self._forget()

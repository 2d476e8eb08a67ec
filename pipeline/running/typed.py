"""What somebody types, a text at a time: with a history and completion on a terminal, line by line from a pipe."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from pipeline.files import cache_folder
from pipeline.terminal import say

PROMPT, MORE, QUOTES = "> ", ". ", '"""'
MOST_KEPT = 1000  # texts of the history


class Lines:
    """Texts from stdin; on a terminal edited with readline, whose history is kept for the next time."""

    def __init__(self, commands: Sequence[str]):
        self._commands = commands
        self._readline: Any = None
        self._history = cache_folder() / "chat_history"

    def __enter__(self) -> Self:
        if sys.stdin.isatty() and sys.stdout.isatty():
            with suppress(ImportError):  # Python may be built without
                import readline

                self._readline = readline
                readline.set_completer_delims(" ")
                readline.set_completer(self._completed)
                readline.parse_and_bind("tab: complete")
                with suppress(OSError):
                    readline.read_history_file(self._history)
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        if self._readline is not None:
            self._readline.set_history_length(MOST_KEPT)
            with suppress(OSError):  # nowhere to keep it
                self._history.parent.mkdir(parents=True, exist_ok=True)
                os.close(os.open(self._history, os.O_CREAT, 0o600))
                self._readline.write_history_file(self._history)

    def _completed(self, text: str, state: int) -> str | None:
        found = [c for c in self._commands if c.startswith(text)] if text.startswith("/") else []
        return found[state] if state < len(found) else None

    def next(self) -> str | None:
        """The next text; None at the end. Lines between three quotes are one text; Ctrl-C takes back what is typed."""
        while True:
            try:
                return self._text()
            except KeyboardInterrupt:
                say("")
            except EOFError:
                if sys.stdin.isatty():
                    say("")
                return None

    def _text(self) -> str:
        text = self._line(PROMPT)
        if not text.startswith(QUOTES):
            return text
        text = text.removeprefix(QUOTES)
        while not text.rstrip().endswith(QUOTES):
            text += "\n" + self._line(MORE)
        return text.rstrip().removesuffix(QUOTES).strip("\n")

    def _line(self, prompt: str) -> str:
        if sys.stdin.isatty() and sys.stdout.isatty():
            return input(prompt)
        if not (line := sys.stdin.readline()):
            raise EOFError
        return line.removesuffix("\n")

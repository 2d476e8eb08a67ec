"""What somebody types, a text at a time: with a history and completion on a terminal, line by line from a pipe."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from pipeline.files import cache_folder
from pipeline.running.interrupts import Interrupts, TakenBack
from pipeline.terminal import say

PROMPT, MORE, QUOTES = "> ", ". ", '"""'
GOES_ON = "\\"  # at the end of a line that is typed
MOST_KEPT = 1000  # texts of the history


@dataclass(frozen=True, slots=True)
class Typed:
    """A text.

    Attributes:
        text: with a lone surrogate for each byte that is no character.
        quoted: it stood between three quotes, or is of several lines, and so is no command whatever it begins with.
        line: where it begins; the first is 1.
    """

    text: str
    quoted: bool
    line: int


class Lines:
    """Texts from stdin; on a terminal edited with readline, whose history is kept for the next time, line by line.

    Attributes:
        person: somebody types them.
    """

    def __init__(self, commands: Sequence[str], interrupts: Interrupts):
        self._commands, self._interrupts = commands, interrupts
        self.person = sys.stdin.isatty()
        self._edits = self.person and sys.stdout.isatty()
        self._readline: Any = None
        self._count = 0  # lines that were read
        self._history = cache_folder() / "chat_history"

    def __enter__(self) -> Self:
        if self._edits:
            with suppress(ImportError):  # Python may be built without
                import readline

                self._readline = readline
                readline.set_completer_delims(" ")
                readline.set_completer(self._completed)
                if "libedit" in (readline.__doc__ or ""):
                    readline.parse_and_bind("bind ^I rl_complete")
                else:
                    readline.parse_and_bind("tab: complete")
                    if os.environ.get("TERM") != "dumb":  # several lines are one text then; Python turns it off
                        readline.parse_and_bind("set enable-bracketed-paste on")
                readline.set_auto_history(True)  # in C: a Ctrl-C right after Enter takes what was entered from Python
                with suppress(OSError):
                    readline.read_history_file(self._history)
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        if self._readline is not None:
            self._readline.set_history_length(MOST_KEPT)
            with suppress(OSError):
                self._readline.write_history_file(self._history)

    def _newest(self) -> tuple[int, str | None]:
        """How many texts the history has, and the last of them."""
        if self._readline is None:
            return 0, None
        count = self._readline.get_current_history_length()
        return count, self._readline.get_history_item(count)

    def _keep(self, before: tuple[int, str | None]) -> None:
        """What the history has gained: now, and not at the end, since there may be none that anybody is told of."""
        count, newest = self._newest()
        if (count, newest) == before or newest is None:
            return
        if not newest.strip():
            return self._readline.remove_history_item(count - 1)  # type: ignore[no-any-return]
        with suppress(OSError):  # nowhere to keep it
            self._history.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._history, os.O_CREAT, 0o600))
            self._readline.append_history_file(1, self._history)

    def _completed(self, text: str, state: int) -> str | None:
        found = [c for c in self._commands if c.startswith(text)] if text.startswith("/") else []
        return found[state] if state < len(found) else None

    def next(self) -> Typed | None:
        """The next text; None at the end. Lines between three quotes are one text; Ctrl-C takes back what is typed."""
        while True:
            try:
                return self._text()
            except TakenBack:
                say("")
            except EOFError:
                if self.person:
                    say("")
                return None

    def _text(self) -> Typed:
        text = self._line(PROMPT)
        begun = self._count
        if not text.startswith(QUOTES):
            while self.person and text.endswith(GOES_ON):
                text = text.removesuffix(GOES_ON) + "\n" + self._line(MORE)
            return Typed(text, "\n" in text, begun)
        text = text.removeprefix(QUOTES)
        try:
            while not text.rstrip().endswith(QUOTES):
                text += "\n" + self._line(MORE)
        except EOFError:  # what there is was meant to be answered; the next line that is asked for ends it all
            say(f"line {begun}: {QUOTES} has no end; all that follows it is one text")
        return Typed(text.rstrip().removesuffix(QUOTES).strip("\n"), True, begun)

    def _line(self, prompt: str) -> str:
        if self._edits:
            before = self._newest()
            try:
                line = self._interrupts.typing(lambda: input(prompt))
            finally:
                self._keep(before)
        else:  # bytes: whether strange ones raise, and lose what follows, would depend on the locale
            read = self._interrupts.typing(sys.stdin.buffer.readline)
            if not read:
                raise EOFError
            line = read.decode(sys.stdin.encoding, "surrogateescape").removesuffix("\n").removesuffix("\r")
        self._count += 1
        return line

"""What a chat shows: an answer as it comes, and what is said about it."""

import os
import sys

from pipeline.engine import Reply
from pipeline.tables import width, wrapped
from pipeline.terminal import safe


class Out:
    """An answer as it comes: stdout has the answer itself, and a terminal what the model thinks, in grey."""

    def __init__(self, *, thinking: bool):
        self._label, self._thinking, self._open = "", thinking, False

    def shows(self, label: str) -> bool:
        """Whether what is said under a label is shown."""
        return self._thinking or not _thought(label)

    def show(self, label: str, text: str) -> None:
        """Of what `shows`."""
        thought = _thought(label)
        stream = sys.stderr if thought else sys.stdout
        if label != self._label:
            self.end()
            self._label = label
            if thought:
                print(_dim(f"[{label}] "), end="", file=stream, flush=True)
        said = safe(text)
        print(_dim(said) if thought else said, end="", file=stream, flush=True)
        self._open = not text.endswith("\n")

    def end(self) -> None:
        """What comes next begins on a line of its own."""
        if self._open:
            print(file=sys.stderr if _thought(self._label) else sys.stdout, flush=True)
            self._open = False


def _thought(label: str) -> bool:
    return label not in ("", "final")


def note(text: str) -> None:
    """A line about the answers, apart from what they say; lines, on a terminal that is narrower."""
    columns = width(sys.stderr)
    lines = wrapped(safe(text), columns) if columns else [safe(text)]
    print(_dim("\n".join(lines)), file=sys.stderr, flush=True)


def _dim(text: str) -> str:
    plain = not sys.stderr.isatty() or os.environ.get("TERM") == "dumb" or os.environ.get("NO_COLOR")
    return text if plain else f"\x1b[2m{text}\x1b[0m"


def speed(reply: Reply) -> str:
    """How an answer came, and why it ended where it was cut off."""
    t = reply.timings
    ended = {
        "length": ", cut off at /max_tokens", "room": ", cut off: the model reads no more at once",
        "interrupted": ", interrupted",
    }.get(reply.finish, "")  # fmt: skip
    compiled = f", {t.compile:.1f} s compiling" if t.compile >= 0.1 else ""
    rate = f", {t.decode_rate:.1f} tokens/s" if t.decode_rate else ""
    read = f"read {t.prompt_tokens:,} of {reply.tokens:,} in {t.prefill:.2f} s"
    return f"[{t.new_tokens} token{'s' * (t.new_tokens != 1)}{rate}{ended}; {read}{compiled}]"

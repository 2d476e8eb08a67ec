"""Text that a stage shows while it runs, token by token; nothing by default. And a line that says how far it is.

Whoever runs the graph in this process may listen. It is for people's eyes: results carry the same.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipeline import terminal

Sink = Callable[[str], None]
_sink: Sink | None = None
_live: Sink | None = None


@contextmanager
def to(sink: Sink, live: Sink | None = None) -> Iterator[None]:
    """Hand everything that is written meanwhile to `sink`, and how far stages are to `live`; called from whatever
    thread the stage runs in."""
    global _sink, _live
    before = _sink, _live
    _sink, _live = sink, live
    try:
        yield
    finally:
        _sink, _live = before


def write(text: str) -> None:
    """Show `text`, if anybody listens."""
    if _sink is not None:
        _sink(text)


def say(line: str) -> None:
    """The same of a line that is to be seen in any case."""
    if _sink is not None:
        _sink(f"{line}\n")
    else:
        terminal.say(line)


def live(line: str) -> None:
    """Show a line in place of the one before it, if anybody listens."""
    if _live is not None:
        _live(line)

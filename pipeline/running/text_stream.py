"""Text that a stage shows while it runs, token by token; nothing by default.

Whoever runs the graph in this process may listen. It is for people's eyes: results carry the same text.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_sink: Callable[[str], None] | None = None


@contextmanager
def to(sink: Callable[[str], None]) -> Iterator[None]:
    """Hand everything that is written meanwhile to `sink`; called from whatever thread the stage runs in."""
    global _sink
    before, _sink = _sink, sink
    try:
        yield
    finally:
        _sink = before


def write(text: str) -> None:
    """Show `text`, if anybody listens."""
    if _sink is not None:
        _sink(text)

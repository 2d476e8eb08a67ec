"""What a run tells while it is at work, and whoever shows it listens to."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Events:
    """Where a run tells what it is doing. Called from any thread, one call at a time."""

    say: Callable[[str], None] = lambda text: None
    total: Callable[[int, int], None] = lambda nbytes, chunks: None
    chunk: Callable[[str, int, bool], None] = lambda label, nbytes, reused: None
    text: Callable[[str], None] = lambda text: None
    live: Callable[[str], None] = lambda line: None

"""`runs`."""

from collections.abc import Sequence


def main(words: Sequence[str]) -> int:
    """The exit code."""
    raise NotImplementedError("runs")

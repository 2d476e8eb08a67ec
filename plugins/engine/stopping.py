"""Text as it comes, up to a stop string: what might become one is held back until it is clear."""

from collections.abc import Sequence


class StopText:
    """Feed it text; it gives back what may be shown."""

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """What can be shown now that `text` has come; nothing after a stop string."""
        if self.stopped:
            return ""
        held = self._held + text
        # The first to be complete, and of those the longest: so it does not matter in which pieces text comes.
        found = [(at + len(s), at) for s in self._stops if (at := held.find(s)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return held[: min(found)[1]]
        keep = max((n for s in self._stops for n in range(1, len(s)) if held.endswith(s[:n])), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def end(self) -> str:
        """What was still held back."""
        held, self._held = self._held, ""
        return held

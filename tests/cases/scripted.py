"""A model that says what is laid into its mouth, token by token, through everything that runs around a real one."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from plugins.engine.conversation import Conversation
from plugins.engine.sizes import MOST_STEPS


class Scripted:
    """A `plugins.engine.runtime.Runtime`, as far as `generate` sees it.

    Attributes:
        read: of each turn the tokens that were put through the model.
        counts: the steps of each program.
    """

    eager, compile_s, load_s, device_nbytes, hidden, dtype = False, 0.0, 0.0, 0, 1, "float32"
    most_steps = MOST_STEPS

    def __init__(self, vocab: int, turns: Sequence[Sequence[int]], room: int | None = None):
        self.vocab, self._turns = vocab, [list(turn) for turn in turns]
        self.config = {"model_type": "gpt_oss"} | ({} if room is None else {"max_position_embeddings": room})
        self.read: list[list[int]] = []
        self.counts: list[int] = []
        self.paces: dict[int, int] = {}
        self._left: list[int] = []
        self._begins = True

    def rows(self, n: int) -> int:
        return n

    def new_cache(self, batch: int, length: int, *, rings: bool = True) -> Any:
        return _Nothing()

    def grown(self, cache: Any, length: int) -> Any:
        return cache

    def cache_nbytes(self, batch: int, length: int) -> int:
        return 0

    def prefill(self, cache: Any, tokens: Any, positions: Any, pick: Any, last: Any, *, fresh: bool) -> Any:
        if self._begins:
            self.read.append([])
            self._begins = False
        self.read[-1] += [int(t) for t, p in zip(tokens[0], positions[0], strict=True) if p >= 0]
        return cache, last

    def first(self, last: Any, seen: Any, keys: Any, numbers: Any, kind: Any) -> Any:
        self._left, self._begins = self._turns.pop(0), True
        return self._next(), seen

    def steps(
        self, count: int, cache: Any, token: Any, position: Any, seen: Any, keys: Any, numbers: Any, kind: Any,
        ends: Any,
    ) -> Any:  # fmt: skip
        self.counts.append(count)
        made = np.zeros((1, MOST_STEPS), np.int32)
        for i in range(count):
            made[:, i] = token = self._next()
        return cache, made, token, position + count, seen

    def fetched(self, array: Any) -> Any:
        return array

    def _next(self) -> Any:
        """The last one again and again, for steps that are asked for ahead."""
        return np.array([self._left.pop(0) if len(self._left) > 1 else self._left[0]])


class _Nothing:
    """A cache of no layers."""

    def up_to(self, position: int) -> "_Nothing":
        return self


def conversation(tokenizer: Any, turns: Sequence[Sequence[int]], *, harmony: bool, room: int | None = None) -> Any:
    """A conversation with it, and the model."""
    runtime = Scripted(tokenizer.vocab_size, turns, room)
    model = SimpleNamespace(runtime=runtime, tokenizer=tokenizer, in_harmony=harmony, room=room)
    return Conversation(model), runtime  # type: ignore[arg-type]

"""The model that a run holds between stages: one at most, so that evaluating and then generating loads it once.

Whoever loads a model owns it. A run owns what its stages load through `Context.models`, and lets go of it at its end; a
task on a worker of a cluster has a slot of its own, because the next one may run on another worker, and two would then
hold what one is planned for.
"""

import gc
import threading
from types import TracebackType
from typing import Any


class ModelSlot:
    """At most one loaded model. In another process a slot is empty: a model does not travel."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._held: tuple[Any, Any] | None = None

    def load(self, engine: Any, checkpoint: Any, *, plain: bool = False) -> Any:
        """A `pipeline.engine.Session`: the one that is held, if it is of an equal engine and store, or a new one. What
        was held before is let go of first: two need not fit.

        Raises:
            PlanError, ConfigError: as `Engine.load`.
        """
        wanted = (engine, plain, checkpoint.store)
        with self._lock:
            if self._held is None or self._held[0] != wanted:
                self.release()
                self._held = wanted, engine.load(checkpoint, plain=plain)
            return self._held[1]

    def release(self) -> None:
        """Let go of it. Nothing but its users keeps it in memory then."""
        with self._lock:
            if self._held is not None:
                self._held = None
                gc.collect()  # a model knows its parts, and they it

    def __enter__(self) -> "ModelSlot":
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def __reduce__(self) -> tuple[type["ModelSlot"], tuple[()]]:
        return ModelSlot, ()

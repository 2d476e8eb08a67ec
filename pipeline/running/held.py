"""The model that this process holds between stages: one at most, so that evaluating and then generating loads it once.

Who holds it for how long: a run on threads until its end; a worker of a cluster for one task, because the next one may
run on another worker, and two would then hold what one is planned for.
"""

import gc
from collections.abc import Callable
from typing import Any

_held: tuple[Any, Any, Any] | None = None


def model(engine: Any, store: Any, load: Callable[[], Any]) -> Any:
    """What `load()` gives; the same again for an equal engine and the same store. What was held before is let go of
    first: two need not fit."""
    global _held
    found = _held  # another task of this worker may end, and let go, at any time
    if found is None or found[0] != engine or found[1] != store:
        found = None
        release()
        found = _held = (engine, store, load())
    return found[2]


def release() -> None:
    """Let go of it. Nothing but its users keeps it in memory then."""
    global _held
    if _held is not None:
        _held = None
        gc.collect()  # a model knows its parts, and they it

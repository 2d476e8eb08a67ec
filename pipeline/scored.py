"""How much of a text is scored where nobody says how much: as many tokens as take minutes, by what the model computes.

By the model alone, and not by how quick this machine was lately: the same command scores the same tokens everywhere and
every time, so figures compare, and what was found once is found again.
"""

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from pipeline.engine import Windows
from pipeline.errors import PlanError, Problem
from pipeline.stage import Checkpoint

SECONDS = 900.0  # for all that is scored, on a machine that computes
RATE = 50e9  # floating-point operations a second: two cores of a laptop
MOST, LEAST = 8192, 256  # tokens of a text
EXPERTS = "*.experts.*"
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")  # of config.json
_CHOSEN = ("num_experts_per_tok", "experts_per_token")


def settled(windows: Windows, checkpoint: Checkpoint, passes: int, where: str) -> Windows:
    """`windows` with a number of tokens, where that is left to us.

    Args:
        passes: how often a model of this size goes through as many tokens.
        where: the key of `windows`, for errors.

    Raises:
        PlanError: a window is longer than the model knows positions, or it knows none.
    """
    known = positions(checkpoint.config)
    if known is not None and known < 1:
        raise PlanError([Problem("config.json max_position_embeddings", f"{known} must be positive")], exit_code=4)
    if known is not None and windows.window > known:
        text = f"{windows.window} tokens, and config.json says that the model knows {known:,} positions"
        raise PlanError([Problem(f"{where}.window", f"{text}; at most {where}.window={known}")])
    if windows.tokens != "auto":
        return windows
    again = windows.window / (windows.stride or windows.window)
    tokens = SECONDS * RATE / max(1.0, operations(checkpoint) * passes * again)
    found = MOST
    while found > max(LEAST, tokens):
        found //= 2
    return replace(windows, tokens=max(LEAST, found))


def positions(config: Mapping[str, Any]) -> int | None:
    """How many the model knows; None: config.json does not say."""
    found = config.get("max_position_embeddings")
    return found if isinstance(found, int) else None


def operations(checkpoint: Checkpoint) -> float:
    """Floating-point operations for a token: two for each weight that it meets, in a matrix."""
    part = share(checkpoint.config)
    return 2.0 * sum(
        spec.size * (part if fnmatchcase(name, EXPERTS) else 1.0)
        for name, spec in checkpoint.store.specs.items()
        if len(spec.shape) > 1
    )


def share(config: Mapping[str, Any]) -> float:
    """Of the experts of a layer those that a token meets; 1 where config.json does not say."""
    return min(1.0, _number(config, _CHOSEN) / max(1, _number(config, _EXPERTS))) or 1.0


def said(windows: Windows, given: Windows) -> str:
    """For the plan: how many tokens were chosen; nothing, where somebody said how many."""
    return f"{windows.tokens:,} tokens of a text" if given.tokens == "auto" else ""


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    return next((n for name in names if isinstance(n := config.get(name), int)), 0)

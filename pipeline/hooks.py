"""Optional members of contracts: declared beside the contract, and asked for here only.

A contract (a Protocol) says what a stage or plugin must have. What it may have stands beside it in a class of *hooks*:
each of their names with its type, what it means, and the value that holds where it is left out. So what can be given is
read in one place, and a name that was mistyped is found before anything runs, and not passed over in silence.
"""

import dataclasses
import difflib
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from pipeline.errors import did_you_mean

H = TypeVar("H", bound=type)

ALIKE = 0.8  # of difflib's ratio: `peek` for `peeks` has 0.89, `cut_rows` for `cuts_rows` 0.94, `now` for `own` 0.67

_of: dict[Any, type] = {}  # contract → its hooks
_contract: dict[type, Any] = {}
_closed: set[type] = set()


def hooks_of(contract: Any, *, closed: bool = False) -> Callable[[H], H]:
    """Make the decorated class the hooks of `contract`; None: of what has no members that it must have.

    Args:
        closed: the contract, the hooks and its fields are all the public members that an implementation has. Otherwise
            it may have others, as long as they do not look like a hook.
    """

    def declare(hooks: H) -> H:
        _of[contract], _contract[hooks] = hooks, contract
        if closed:
            _closed.add(hooks)
        return hooks

    return declare


def members(contract: Any) -> set[str]:
    """The public names that a contract, or a class of hooks, declares."""
    names = {*dir(contract), *getattr(contract, "__annotations__", {})}
    return {n for n in names if not n.startswith("_")}


def lacking(plugin: Any, contract: Any) -> list[str]:
    """What `contract` asks for and `plugin` does not have."""
    cls = type(plugin)
    have = {*dir(cls), *vars_of(plugin), *_fields(cls)}
    return sorted(members(contract) - have)


def vars_of(plugin: Any) -> set[str]:
    """Names in the instance itself, where it has any."""
    return set(getattr(plugin, "__dict__", ()))


def optional(plugin: Any, hooks: type, name: str) -> Any:
    """The member `name` of `plugin`, or what `hooks` says holds where it has none."""
    return getattr(plugin, name, hooks.__dict__[name])


def misspelt(cls: type, contract: Any) -> tuple[str, ...]:
    """For each public member of `cls` that looks like one of the hooks of `contract` and is none: what is wrong."""
    return _misspelt(cls, _of[contract]) if contract in _of else ()


@cache
def _misspelt(cls: type, hooks: type) -> tuple[str, ...]:
    allowed = sorted(members(hooks))
    known = {*allowed, *(members(_contract[hooks]) if _contract[hooks] is not None else ()), *_fields(cls)}
    strange = [n for n in dir(cls) if not n.startswith("_") and n not in known]
    if hooks not in _closed:
        strange = [n for n in strange if any(_alike(n, hook) for hook in allowed)]
    return tuple(
        f"{cls.__name__} has a member {name!r}, which is none that it may have{did_you_mean(name, allowed)}; what is "
        "its own business begins with _" + (", what is an option is a field" if hooks in _closed else "")
        for name in strange
    )


def _alike(name: str, hook: str) -> bool:
    """Whether `name` may have been meant for `hook`."""
    a, b = (n.lower().replace("_", "") for n in (name, hook))
    return bool(difflib.SequenceMatcher(None, a, b).ratio() >= ALIKE)


def _fields(cls: type) -> set[str]:
    return {f.name for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()

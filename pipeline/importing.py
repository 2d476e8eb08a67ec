"""What importing does that gives nothing here, left out: for commands of ours, before they import what they need.

A start of a command is importing, by half, and a third of that is making dataclasses: `dataclasses` has every method of
each compiled from its text.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Method = Callable[..., Any]


def quickly() -> None:
    """Make what few call of a dataclass without compiling it: what frozen ones refuse, and what is shown of them.
    From Python 3.13 on all methods of a class are compiled together."""
    if sys.version_info < (3, 13):
        dataclasses._frozen_get_del_attr = _refusing  # type: ignore[attr-defined]
        dataclasses._repr_fn = _showing  # type: ignore[attr-defined]


def _refusing(cls: type, fields: list[dataclasses.Field[Any]], _: dict[str, Any]) -> tuple[Method, Method]:
    names = frozenset(f.name for f in fields)

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)  # type: ignore[arg-type]

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)  # type: ignore[arg-type]

    return __setattr__, __delattr__


def _showing(fields: list[dataclasses.Field[Any]], _: dict[str, Any]) -> Method:
    names = [f.name for f in fields]

    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    shown: Method = dataclasses._recursive_repr(__repr__)  # type: ignore[attr-defined]
    return shown


@contextmanager
def without(name: str) -> Iterator[None]:
    """While a library is imported that does without the module `name` where that is not installed: so it is not
    imported either, unless it is there already. Whoever wants it later has it."""
    there = sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        if there is None:
            del sys.modules[name]

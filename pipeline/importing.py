"""What importing does that gives nothing here, left out: for commands of ours, before they import what they need.

A start of a command is importing, by half, and a third of that is making dataclasses: `dataclasses` has every method of
each compiled from its text.
"""

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

Method = Callable[..., Any]


def quickly() -> None:
    """Compile a method of a dataclass when it is first asked for, which half of them never are in a command; and what
    frozen ones refuse, and what is shown of them, not at all. From Python 3.13 on all methods of a class are compiled
    together."""
    dataclasses.inspect = SimpleNamespace(**{**vars(inspect), "signature": _signature})  # type: ignore[attr-defined]
    if sys.version_info < (3, 13):
        dataclasses._create_fn = _Later  # type: ignore[attr-defined]
        dataclasses._frozen_get_del_attr = _refusing  # type: ignore[attr-defined]
        dataclasses._repr_fn = _showing  # type: ignore[attr-defined]


_compiled: Any = getattr(dataclasses, "_create_fn", None)  # of Python 3.11 and 3.12


class _Later:
    """Stands in a class for a method of a dataclass, and is that from when somebody asks for it: by its name, by
    `inspect`, or because an object is made, compared or hashed.

    Attributes:
        name: of the method.
        given: what `dataclasses` says of it.
    """

    def __init__(self, name: str, *given: Any, **named: Any):
        self.name, self.given, self.named = name, given, named

    def __get__(self, instance: Any, owner: type) -> Any:
        method = _compiled(self.name, *self.given, **self.named)
        for cls in owner.__mro__:
            if cls.__dict__.get(self.name) is self:
                method.__qualname__ = f"{cls.__qualname__}.{self.name}"
                setattr(cls, self.name, method)
        return method if instance is None else method.__get__(instance, owner)


def _signature(cls: type) -> Any:
    """What `dataclasses` makes a docstring of where there is none: not of Hydra's classes, whose nobody reads."""
    return "" if cls.__module__.startswith("hydra.") else inspect.signature(cls)


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

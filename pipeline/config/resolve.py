"""From a resolved config node to a live object: the target class is its own schema.

`_target_` names a frozen dataclass; its annotations check the fields. OmegaConf's structured configs would be the usual
tool, but they know neither `Literal` nor `tuple[X, ...]` nor fields that hold other plugins, and their messages do
not name the nearest key, so the check is written out here. All problems of a config are collected, none stops the rest.

YAML can only reach dataclasses of packages on the allow-list, so it cannot call `os.system`.
"""

import dataclasses
import importlib
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config import moved, synonyms
from pipeline.config.synonyms import spelt
from pipeline.errors import PlanError, Problem, WeightmillError, did_you_mean
from pipeline.hooks import lacking, misspelt

OWN_PACKAGES = ("stages", "plugins")
# Plain data, which YAML may name although pipeline holds no plugins.
OWN_CLASSES = ("pipeline.mesh.Mesh", "pipeline.rules.Rule")
NO_NODE = "a node with `_target_` is expected, got "
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
_BAD = object()  # stands for a value whose problem has been noted


class Resolver:
    """Builds objects and notes problems.

    Attributes:
        packages: top-level packages that `_target_` may name.
        finite: whether numbers are to be finite, as people set them; what was found may be otherwise.
        problems: what was found so far.
    """

    def __init__(self, packages: Iterable[str] = OWN_PACKAGES, *, finite: bool = True):
        self.packages, self.finite = tuple(packages), finite
        self.problems: list[Problem] = []

    def note(self, where: str, message: str) -> Any:
        self.problems.append(Problem(where, message))
        return _BAD

    def build(self, node: Any, where: str) -> Any:
        """The object that `node` (a mapping with `_target_`) describes, or None when there were problems."""
        built = self._build(node, where)
        return None if built is _BAD else built

    def typed(self, node: Any, cls: type, where: str) -> Any:
        """`node` as the dataclass `cls`, or None when there were problems."""
        built = self._value(node, cls, where)
        return None if built is _BAD else built

    def plugin(self, node: Any, contract: type, where: str) -> Any:
        """The same, which keeps `contract`."""
        built = self._plugin(node, contract, where)
        return None if built is _BAD else built

    def _build(self, node: Any, where: str) -> Any:
        if not isinstance(node, Mapping) or "_target_" not in node:
            return self.note(where, f"{NO_NODE}{node!r}")
        cls = self._class(node["_target_"], f"{where}._target_")
        if cls is _BAD:
            return _BAD
        return self._dataclass(cls, {k: v for k, v in node.items() if k != "_target_"}, where)

    def _class(self, target: Any, where: str) -> Any:
        if not isinstance(target, str) or not (target in OWN_CLASSES or target.partition(".")[0] in self.packages):
            hint = did_you_mean(str(target).partition(".")[0], self.packages)
            return self.note(where, f"{target!r} is outside the packages a config may name{hint}")
        if target in moved.TARGETS:
            return self.note(where, f"{target!r} is now {moved.TARGETS[target]!r}")
        module_name, _, name = target.rpartition(".")
        if not module_name or "" in target.split("."):
            return self.note(where, f"{target!r} is not the dotted name of a class, such as stages.load.Load")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as why:
            if why.name and (module_name == why.name or module_name.startswith(why.name + ".")):
                places = f"no module {why.name!r}: there is no {' or '.join(_places(why.name)) or 'such package'}"
                return self.note(where, f"{places}{did_you_mean(why.name, _siblings(why.name))}")
            return self.note(where, f"importing {module_name} needs the package {why.name!r}, which is not installed")
        cls = getattr(module, name, None)
        ours = target in OWN_CLASSES or (isinstance(cls, type) and _top(cls) in self.packages)
        if not isinstance(cls, type) or not dataclasses.is_dataclass(cls) or not ours:
            classes = [n for n, c in vars(module).items() if isinstance(c, type) and dataclasses.is_dataclass(c)]
            return self.note(where, f"{target!r} is not a dataclass of {module_name}{did_you_mean(name, classes)}")
        return cls

    def _dataclass(self, cls: type, values: Mapping[Any, Any], where: str) -> Any:
        fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
        hints = typing.get_type_hints(cls)
        before = len(self.problems)
        for key in values:
            if key not in fields:
                known = moved.field(f"{cls.__module__}.{cls.__qualname__}", str(key))
                ours = synonyms.of_field(cls.__name__, str(key), values[key])
                hint = f"; say {ours}" if ours else did_you_mean(str(key), fields)
                hint = f"; it {known}" if known else hint
                self.note(f"{where}.{key}", f"{cls.__name__} has no field {key!r}{hint}")
        given = {k: self._value(v, hints[k], f"{where}.{k}") for k, v in values.items() if k in fields}
        for name, f in fields.items():
            required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
            if required and name not in given:
                self.note(f"{where}.{name}", f"is required by {cls.__name__} and not set")
        if len(self.problems) > before:
            return _BAD
        try:
            return cls(**given)
        except PlanError as why:
            for problem in why.problems:
                self.note(f"{where}.{problem.where}", problem.message)
            return _BAD
        except (WeightmillError, ValueError, TypeError) as why:
            return self.note(where, str(why))

    def _value(self, value: Any, hint: Any, where: str) -> Any:
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if isinstance(value, Mapping) and "_target_" in value:
            return self._plugin(value, hint, where)
        if hint is Any:
            return value
        if origin in (typing.Union, types.UnionType):
            return self._union(value, args, where)
        if origin is typing.Literal:
            if (value := spelt(value, args)) in args:
                return value
            return self.note(where, f"{value!r} is not a choice{did_you_mean(str(value), map(str, args))}")
        if origin in (tuple, list, Sequence):
            if (
                isinstance(value, Mapping)
                and value
                and all(isinstance(v, Mapping) and "_target_" in v for v in value.values())
            ):
                value = [*value.values()]  # by name, as our files have them
            if isinstance(value, str) or not isinstance(value, Sequence):
                return self.note(where, f"a list is expected, got {value!r}; [{value}] is one")
            items = [self._value(v, args[0] if args else Any, f"{where}[{i}]") for i, v in enumerate(value)]
            return _BAD if any(i is _BAD for i in items) else (items if origin is list else tuple(items))
        if origin in (dict, Mapping):
            if not isinstance(value, Mapping):
                return self.note(where, f"a mapping is expected, got {value!r}")
            return {k: self._value(v, args[1], f"{where}.{k}") for k, v in value.items()}
        if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
            return self._dataclass(typing.cast(type, hint), value, where)
        return self._scalar(value, hint, where)

    def _union(self, value: Any, args: tuple[Any, ...], where: str) -> Any:
        if value is None and type(None) in args:
            return None
        inner = [a for a in args if a is not type(None)]
        if len(inner) == 1:
            return self._value(value, inner[0], where)
        if type(value) in inner and type(value) in (int, float):
            return self._scalar(value, type(value), where)
        if type(value) in inner or any(
            typing.get_origin(a) is typing.Literal and value in typing.get_args(a) for a in inner
        ):
            return value
        listed = [a for a in inner if typing.get_origin(a) in (tuple, list, Sequence)]
        if listed and isinstance(value, Sequence) and not isinstance(value, str):
            return self._value(value, listed[0], where)
        records = [a for a in inner if dataclasses.is_dataclass(a)]
        if len(records) == 1 and isinstance(value, Mapping):
            return self._value(value, records[0], where)
        if str in inner and type(value) in (int, float) and not {int, float} & {*inner}:
            return str(value)  # a bare number on the command line arrives parsed
        return self.note(where, f"{' or '.join(map(_spoken, args))} is expected, got {value!r}")

    def _plugin(self, node: Mapping[str, Any], hint: Any, where: str) -> Any:
        built = self._build(node, where)
        if built is _BAD or hint is Any:
            return built
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            hint = next(a for a in typing.get_args(hint) if a is not type(None))
        if getattr(hint, "_is_protocol", False):
            if lacks := lacking(built, hint):
                return self.note(where, f"{type(built).__name__} is not a {hint.__name__}: it lacks {', '.join(lacks)}")
            for text in misspelt(type(built), hint):
                self.note(where, text)
        elif isinstance(hint, type) and not isinstance(built, hint):
            return self.note(where, f"a {hint.__name__} is expected, got {type(built).__name__}")
        return built

    def _scalar(self, value: Any, hint: Any, where: str) -> Any:
        if type(value) is int and hint in (int, float) and not -(2**63) <= value < 2**63:
            return self.note(where, f"{value:.3e} is too large; whole numbers have 64 bits")
        if self.finite and type(value) is float and hint is float and not math.isfinite(value):
            return self.note(where, f"a finite number is expected, got {value}")
        if hint is float and type(value) is int:
            return float(value)
        if hint is str and type(value) in (int, float):
            return str(value)  # a bare number on the command line arrives parsed
        if hint is Path and isinstance(value, str):
            return Path(value)
        if getattr(hint, "_is_protocol", False):
            return self.note(where, f"{NO_NODE}{value!r}")
        if isinstance(hint, type) and isinstance(value, hint) and (hint is bool or type(value) is not bool):
            return value
        if dataclasses.is_dataclass(hint):
            names = ", ".join(f"{f.name}: …" for f in dataclasses.fields(hint) if f.init)
            return self.note(where, f"a mapping is expected, of {{{names}}}, got {value!r}")
        return self.note(where, f"{_spoken(hint)} is expected, got {value!r}")


def _spoken(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(map(str, typing.get_args(hint)))
    return str(KINDS.get(hint) or getattr(hint, "__name__", hint))


def _top(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _places(module_name: str) -> list[str]:
    """Where a module would lie; a user's own folder, which comes last on a package's path, first."""
    parent, _, name = module_name.rpartition(".")
    return [f"{folder}/{name}.py" for folder in reversed(_folders(parent))]


def _siblings(module_name: str) -> list[str]:
    """Modules beside the one that was not found."""
    import pkgutil

    parent = module_name.rpartition(".")[0]
    return [f"{parent}.{m.name}" for m in pkgutil.iter_modules(_folders(parent))]


def _folders(package: str) -> list[str]:
    """Where a package's modules lie; none when there is no such package."""
    try:
        return list(getattr(importlib.import_module(package), "__path__", ())) if package else []
    except ImportError:
        return []

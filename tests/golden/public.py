"""What other people's code, YAML and command lines may name: stated here, spelled out in public.json.

CONTRIBUTING.md, "What is public", says what is promised. A name that is gone or called otherwise breaks somebody's
file, so public.json is written anew by `make golden` only, and a class or field that YAML could name and that goes has
to be in `pipeline/config/moved.py` first.
"""

import dataclasses
import importlib
import inspect
import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline.config import moved
from pipeline.config.options import CONF
from pipeline.config.resolve import OWN_CLASSES, OWN_PACKAGES

PUBLIC = Path(__file__).with_name("public.json")
FUNCTIONS = (
    "pipeline.compare", "pipeline.load_model", "pipeline.plan", "pipeline.report.html", "pipeline.report.load",
    "pipeline.report.plots", "pipeline.run", "pipeline.runs", "pipeline.sweep",
    "plugins.formats.orbax.tree.abstract", "plugins.live.trees.dequantize",
    "plugins.live.trees.quantize", "plugins.mesh.library.preset", "plugins.mesh.library.shardings",
)  # fmt: skip
CONSTANTS = (
    "pipeline.tensors.scheme.ELEMENT_BITS", "pipeline.tensors.scheme.MXFP4",
    "pipeline.tensors.spec.DTYPE_BITS", "pipeline.tensors.spec.FLOAT_DTYPES",
)  # fmt: skip
ERRORS = (
    "WeightmillError", "ConfigError", "PlanError", "SourceError", "StorageError", "StageError", "ValueRangeError",
    "NotLossless", "Unsupported", "Problem", "did_you_mean",
)  # fmt: skip
# Module → the names of it that are public; none said: all that are defined there and do not begin with `_`.
CONTRACTS: dict[str, tuple[str, ...]] = {
    "pipeline.errors": ERRORS,
    "pipeline.stage": (),
    "pipeline.engine": (),
    "pipeline.method": (),
    "pipeline.ops": (),
    "pipeline.formats": (),
    "pipeline.tracker": (),
    "pipeline.contender": (),
    "pipeline.growth": (),
    "pipeline.mesh": ("Layout", "Mesh", "Parameter"),
    "pipeline.tensors.spec": (),
    "pipeline.tensors.scheme": (),
    "pipeline.tensors.store": (),
    "pipeline.tensors.qtensor": (),
    "pipeline.tensors.binding": (),
    "pipeline.tensors.steps": (),
    "pipeline.tensors.views": ("JoinedStore", "MappedStore", "Transform", "stored_leaves"),
    "plugins.engine.engine": ("Tokenizers",),
    "plugins.live.linear": ("Packed", "QuantizedLinear"),
    "plugins.models.common.decoder": (),
    "plugins.models.common.weights": (),
    "plugins.models.family": ("Family",),
    "plugins.tokenizers.tokenizer": (),
    "stages.parity": ("Reference",),
}
TESTING = {f"pipeline.testing.{m}": () for m in ("stage", "container", "dialect", "method", "kernel", "memory", "peak")}

Spelled = dict[str, dict[str, Any]]


def now() -> Spelled:
    """What the tree has."""
    return {
        "functions": {name: signature(_named(name)) for name in FUNCTIONS},
        "constants": {name: type(_named(name)).__name__ for name in CONSTANTS},
        "contracts": dict(_modules(CONTRACTS)),
        "targets": {name: fields(_named(name)) for name in sorted(targets())},
        "testing": dict(_modules(TESTING)),
        "options": options(),
    }


def expected() -> Spelled:
    found: Spelled = json.loads(PUBLIC.read_bytes())
    return found


def flat(spelled: Spelled) -> dict[str, str]:
    """One line for every name: `targets stages.load.Load source` → how it is spelled."""
    lines: dict[str, str] = {}

    def walk(path: str, value: Any) -> None:
        if isinstance(value, str):
            lines[path] = value
        for key, inner in value.items() if isinstance(value, dict) else ():
            walk(f"{path} {key}".strip(), inner)
        for item in value if isinstance(value, list) else ():
            lines[f"{path} {item}"] = ""

    walk("", spelled)
    return lines


def unexplained(before: Spelled, after: Spelled) -> list[str]:
    """What YAML could name before and cannot now, without `moved` saying what to write instead."""
    gone = []
    for target, had in before.get("targets", {}).items():
        now_at = moved.TARGETS.get(target, target)
        if now_at.startswith("${"):  # no class any more, but another place of the config
            continue
        if now_at not in after["targets"]:
            gone.append(f"{target}: moved.TARGETS is to say where it is now")
            continue
        lost = [f for f in had if f not in after["targets"][now_at] and not moved.field(now_at, f)]
        gone += [f"{target} {field}: moved.FIELDS is to say what to write instead" for field in lost]
    return gone


def targets() -> set[str]:
    """Every `_target_` that our YAML names, and the dataclasses that their fields hold."""
    found: set[str] = set()
    for path in CONF.rglob("*.yaml"):
        for name in _targets(yaml.safe_load(path.read_text())):
            if name in OWN_CLASSES or name.partition(".")[0] in OWN_PACKAGES:
                found.add(name)
    waiting = list(found)
    while waiting:
        cls = _named(waiting.pop())
        for hint in typing.get_type_hints(cls).values():
            for inner in _dataclasses(hint):
                name = f"{inner.__module__}.{inner.__qualname__}"
                if name not in found and (name in OWN_CLASSES or name.partition(".")[0] in OWN_PACKAGES):
                    found.add(name)
                    waiting.append(name)
    return found


def _targets(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("_target_"), str):
            yield node["_target_"]
        for value in node.values():
            yield from _targets(value)
    elif isinstance(node, list):
        for value in node:
            yield from _targets(value)


def _dataclasses(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for inner in typing.get_args(hint):
        yield from _dataclasses(inner)


def options() -> dict[str, list[str]]:
    """The choices of every group of conf/."""
    found: dict[str, list[str]] = {}
    for path in sorted(CONF.rglob("*.yaml")):
        group = path.parent.relative_to(CONF).as_posix()
        found.setdefault(group, []).append(path.stem)
    return found


def _named(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _modules(listed: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, Any]]:
    for module_name, names in listed.items():
        module = importlib.import_module(module_name)
        for name in names or sorted(_own(module)):
            value = getattr(module, name)
            yield f"{module_name}.{name}", members(value) if isinstance(value, type) else signature(value)


def _own(module: types.ModuleType) -> Iterator[str]:
    """Functions and classes that a module defines itself."""
    for name, value in vars(module).items():
        own = not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
        if own and (isinstance(value, type) or (callable(value) and inspect.isfunction(inspect.unwrap(value)))):
            yield name


def members(cls: type) -> dict[str, str]:
    """Fields, class variables, properties and methods, those of bases of ours too."""
    found = fields(cls) if dataclasses.is_dataclass(cls) else {}
    for base in reversed([c for c in cls.__mro__ if c.__module__.partition(".")[0] in ("pipeline", *OWN_PACKAGES)]):
        for name, hint in inspect.get_annotations(base).items():
            if not name.startswith("_") and name not in found:
                found[name] = spelled(hint)
        for name, value in vars(base).items():
            value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            if name.startswith("_"):
                continue
            if isinstance(value, property):
                found[name] = "-> " + spelled(inspect.get_annotations(value.fget).get("return"))  # type: ignore[arg-type]
            elif inspect.isfunction(value):
                found[f"{name}()"] = signature(value)
    return dict(sorted(found.items()))


def fields(cls: Any) -> dict[str, str]:
    """What YAML may write below a `_target_`: field → type, and the default of a field that has one."""
    found = {}
    for f in dataclasses.fields(cls):
        if f.init:
            hint = spelled(f.type)
            if f.default is not dataclasses.MISSING:
                hint += f" = {_default(f.default)}"
            elif f.default_factory is not dataclasses.MISSING:
                hint += " = …"
            found[f.name] = hint
    return found


def signature(function: Any) -> str:
    """As it would be written, names of types without their modules: the same on every Python."""
    given = inspect.signature(function)
    parts: list[str] = []
    star = False
    for p in given.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not star:
            parts.append("*")
        star |= p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        prefix = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        hint = "" if p.annotation is p.empty else f": {spelled(p.annotation)}"
        default = "" if p.default is p.empty else f" = {_default(p.default)}"
        parts.append(f"{prefix}{p.name}{hint}{default}")
    back = "" if given.return_annotation is given.empty else f" -> {spelled(given.return_annotation)}"
    return f"({', '.join(parts)}){back}"


def _default(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float | tuple | None | bool) else type(value).__name__


def spelled(hint: Any) -> str:
    """A type as it would be written, without modules."""
    if hint is None or hint is type(None):
        return "None"
    if isinstance(hint, str):
        return hint
    if isinstance(hint, list):  # the arguments of a Callable
        return f"[{', '.join(map(spelled, hint))}]"
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(spelled, args))
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if hint is ...:
        return "..."
    if origin is not None:
        name = getattr(origin, "__name__", str(origin))
        return f"{name}[{', '.join(map(spelled, args))}]" if args else name
    return str(getattr(hint, "__qualname__", None) or getattr(hint, "__name__", hint))

"""What every option and setting is, read from where it is said: the comments of conf/, and the types of the classes
that their `_target_` names. `explain` shows it, and the pages of docs/ that list the configuration are made of it.

Files are parsed and not composed, so that a setting is found in whichever option has it: `quant.scale_rule` is of
`quant=mxfp4`, and there is none with `quant=none`.
"""

import dataclasses
import importlib
import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from pipeline.config import extend, synonyms
from pipeline.config.options import CONF, option_folders
from pipeline.errors import ConfigError, did_you_mean, some

LEFT_OUT = ("hydra",)  # Hydra's own groups and settings
HERE = "_self_"
UP_TO = 60  # characters of a default that are shown


@dataclass(frozen=True)
class Setting:
    """One key of an option.

    Attributes:
        key: as it is typed, from the root of the config.
        default: on one line, as YAML has it; `???` where there is none.
        says: the comment beside it.
        target: of the node that it is a field of, the class; None outside of one.
    """

    key: str
    default: str
    says: str
    target: str | None = None

    @property
    def allowed(self) -> str:
        """What its value may be, by the annotation of the field; nothing where no class says it."""
        return allowed(self.target, self.key.rpartition(".")[2]) if self.target else ""


@dataclass(frozen=True)
class Part:
    """An entry of a list of defaults: the option `name` of `group`, and the comment beside it."""

    group: str
    name: str
    says: str


@dataclass(frozen=True)
class Option:
    """One YAML file of a group.

    Attributes:
        group: its folder, `train/optimizer`; the spine has none.
        name: of the file.
        says: the comment that it opens with.
        own: settings that stand in it.
        parts: what its list of defaults names.
    """

    group: str
    name: str
    says: str
    own: tuple[Setting, ...]
    parts: tuple["Part", ...]

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """Its own and those of options of the same group that it is built on; what it says itself wins."""
        found: dict[str, Setting] = {}
        for part in self.parts:
            below = find(part.group, part.name) if part.group == self.group and part.name != self.name else None
            found |= {s.key: s for s in below.settings} if below else {}
        for setting in self.own:
            before = found.get(setting.key)
            says, target = (before.says, before.target) if before else ("", None)
            found[setting.key] = dataclasses.replace(
                setting, says=setting.says or says, target=setting.target or target
            )
        above = {key[:at] for key in found for at, sign in enumerate(key) if sign == "."}  # null until an option has it
        return tuple(s for key, s in found.items() if key not in above)

    @property
    def typed(self) -> str:
        """What chooses it on the command line."""
        return f"{self.group}={self.name}" if self.group else "always"


def groups() -> list[str]:
    """All config groups, `quant` and `train/optimizer`, in alphabetical order."""
    found = set()
    for folder in option_folders(extend.folder()):
        for file in folder.rglob("*.yaml"):
            group = file.parent.relative_to(folder).as_posix()
            if group != "." and group.partition("/")[0] not in LEFT_OUT:
                found.add(group)
    return sorted(found)


def options(group: str) -> list[Option]:
    """Every option of a group, by name; the first folder that has one says it."""
    names: dict[str, Path] = {}
    for folder in option_folders(extend.folder()):
        for file in sorted((folder / group).glob("*.yaml")):
            names.setdefault(file.stem, file)
    return [_read(file, group) for _, file in sorted(names.items())]


def find(group: str, name: str) -> Option | None:
    """One option, or None where there is no such file."""
    return next((option for option in options(group) if option.name == name), None)


def spine() -> Option:
    """conf/config.yaml: the settings of every run, and which option each group begins with."""
    return _read(CONF / "config.yaml", "")


def begins_with(group: str) -> Part | None:
    """The option that a group has unless another is chosen, if any, and what is said of it there."""
    above = options(group.rpartition("/")[0]) if "/" in group else [spine()]
    found = [part for option in above for part in option.parts if part.group == group]
    return next((part for part in found if part.says), found[0] if found else None)


@cache
def _read(file: Path, group: str) -> Option:
    try:
        return _parsed(file.read_text(encoding="utf-8"), file, group)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as why:
        raise ConfigError(f"{file}: cannot be read: {str(why).partition(chr(10))[0]}") from None


def _parsed(text: str, file: Path, group: str) -> Option:
    lines = text.splitlines()
    opening = [line[1:].strip() for line in _comments(lines)]
    package = next((o.split()[1] for o in opening if o.startswith("@package")), group.replace("/", "."))
    said = " ".join(o for o in opening if not o.startswith("@package"))
    root = yaml.compose(text, yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        return Option(group, file.stem, said, (), ())
    keys = {str(key.value): value for key, value in root.value}
    own = tuple(_settings(root, "" if package == "_global_" else package, lines))
    parts = tuple(_parts(keys["defaults"], group, lines)) if "defaults" in keys else ()
    said = said or (_first_paragraph(str(keys["_target_"].value)) if "_target_" in keys else "")
    return Option(group, file.stem, said, own, parts)


def _first_paragraph(target: str) -> str:
    """What the class itself says that it is, for files that leave it to that."""
    found = _class(target)
    return " ".join(inspect.cleandoc(found.__doc__ or "").partition("\n\n")[0].split()) if found else ""


def _comments(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("#"):
            return
        yield line


def _settings(
    node: yaml.MappingNode, prefix: str, lines: Sequence[str], target: str | None = None
) -> Iterator[Setting]:
    target = next((v.value for k, v in node.value if k.value == "_target_"), target if prefix else None)
    for key, value in node.value:
        if key.value in ("_target_", "_partial_") or (not prefix and key.value in ("defaults", *LEFT_OUT)):
            continue
        if key.value == "defaults" and isinstance(value, yaml.SequenceNode):
            continue
        name = f"{prefix}.{key.value}" if prefix else str(key.value)
        says = _beside(key, value, lines)
        block = isinstance(value, yaml.MappingNode) and not value.flow_style and value.value
        if block and _fields(value):
            yield from _settings(value, name, lines, None if _has_target(value) else target)
        else:
            yield Setting(name, _default(value), says, target)


def _has_target(node: yaml.MappingNode) -> bool:
    return any(key.value == "_target_" for key, _ in node.value)


def _fields(node: yaml.MappingNode) -> bool:
    """Whether a mapping's keys are settings, and not names that somebody may give."""
    return all(isinstance(key, yaml.ScalarNode) and str(key.value).isidentifier() for key, _ in node.value)


def _beside(key: yaml.Node, value: yaml.Node, lines: Sequence[str]) -> str:
    """The comment on the line where the value begins, or else on that of the key."""
    at, column = key.start_mark.line, key.end_mark.column
    if isinstance(value, yaml.ScalarNode) or (isinstance(value, yaml.CollectionNode) and value.flow_style):
        column = value.end_mark.column if value.end_mark.line == at else len(lines[at])
    return lines[at][column:].partition("#")[2].strip()


def _default(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value) if node.value or node.style is None else "''"
    plain = yaml.safe_load(yaml.serialize(node))
    said = " ".join(yaml.safe_dump(plain, default_flow_style=True, width=10**6, sort_keys=False).split())
    return said if len(said) <= UP_TO else f"{said[: UP_TO - 1]}…"


def _parts(node: yaml.Node, group: str, lines: Sequence[str]) -> Iterator[Part]:
    """Of a list of defaults, the files that it names: `- lora` of the same group, `- objective: causal_lm` below it,
    `- /model: cnn` from the root."""
    for entry in node.value:
        pairs = entry.value if isinstance(entry, yaml.MappingNode) else [(None, entry)]
        for key, value in pairs:
            place, _, name = ("", "", value.value) if key is None else (key.value, "", value.value)
            if key is None:
                place, _, name = str(name).rpartition("/")
            if isinstance(name, str) and name != HERE and not place.startswith("override hydra"):
                place = place.removeprefix("override ").partition("@")[0]
                inner = place[1:] if place.startswith("/") else "/".join(filter(None, (group, place)))
                yield Part(inner, name.partition("@")[0], _beside(key or value, value, lines))


def allowed(target: str, name: str) -> str:
    """What the field `name` of the class `target` may be, in words."""
    found = _class(target)
    try:
        hint = typing.get_type_hints(found).get(name) if found else None
    except Exception:  # of somebody's class: a name that only type checkers see, say
        return ""
    return in_words(hint) if hint is not None else ""


def _class(target: str) -> type | None:
    """The class that a `_target_` names; None where there is none: a package that is not installed, a module of
    somebody's that cannot be imported. A run says why; here it is only about words."""
    module, _, cls = target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), cls, None)
    except Exception:  # whatever a module raises that is imported
        return None
    return found if isinstance(found, type) else None


def in_words(hint: Any) -> str:
    """An annotation as people say it: `Literal["a", "b"] | None` is `a, b or null`."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        said = [in_words(a) for a in args if a is not type(None)]
        return " or ".join([*filter(None, said), *["null"] * (type(None) in args)])
    if origin is typing.Literal:
        return ", ".join(map(str, args))
    if origin in (tuple, list, Sequence) or (isinstance(origin, type) and issubclass(origin, Sequence)):
        of = in_words(args[0]) if args else ""
        return f"a list of: {of}" if of else "a list"
    if origin in (dict, typing.Mapping) or (isinstance(origin, type) and issubclass(origin, typing.Mapping)):
        return "a mapping"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    return words.get(hint, "")


@dataclass(frozen=True)
class Explained:
    """What `explain` found of a name.

    Attributes:
        key: the name.
        settings: (option, setting) of every file that has it, or that has what lies below it.
        options: of a group, all; else none.
        chosen: the one of those that a run begins with, and what is said of the group there.
        says: of one option, what it is.
    """

    key: str
    settings: tuple[tuple[Option, Setting], ...] = ()
    options: tuple[Option, ...] = ()
    chosen: Part | None = None
    says: str = ""


def explained(key: str) -> Explained:
    """What `key` is: a group (`quant`), an option (`quant=mxfp4`), or a setting (`quant.scale_rule`).

    Raises:
        ConfigError: there is nothing of that name; with the nearest.
    """
    known = groups()
    name = key.lstrip("+~").replace("@", "/")
    group, chose, option = name.partition("=")
    as_group = group.replace(".", "/")
    if chose and as_group in known:
        if one := find(as_group, option):
            return Explained(key, tuple((one, s) for s in one.settings), says=one.says)
        near = synonyms.meant(as_group, option) or did_you_mean(option, [o.name for o in options(as_group)], 40)
        raise ConfigError(f"explain {key}: there is no {option!r} in {as_group}{near}")
    if as_group in known:
        return Explained(key, (), tuple(options(as_group)), begins_with(as_group))
    everywhere = [*_everywhere(known)]
    named = [o for g in known for o in options(g) if o.name == key]
    found = [(o, s) for o, s in everywhere if s.key == group]
    found = found or [(o, s) for o, s in everywhere if s.key.startswith(f"{group}.")]
    if found:
        return Explained(key, tuple(found))
    if len(named) == 1:
        return explained(named[0].typed)
    if named:
        return Explained(key, (), tuple(named))
    if near := next((f"{m}; explain {g} lists them" for g in known if (m := synonyms.meant(g, key))), ""):
        raise ConfigError(f"explain {key}: there is no such group or setting{near}")
    names = {s.key for _, s in everywhere} | {*known}
    beside = [name for name in names if name.startswith(f"{group.partition('.')[0]}.")] if "." in group else []
    ours = (synonyms.instead(group, option) or "").partition("=")[0]
    near = f"; here that is {ours}" if ours else did_you_mean(group, sorted(beside or names))
    raise ConfigError(f"explain {key}: there is no such group or setting{near}")


def below(key: str, value: str) -> str:
    """The tail of a message about `key=value` where `key` has settings below it: which may have been meant."""
    settings = {s.key: s for _, s in _everywhere(groups()) if s.key.startswith(f"{key}.")}
    words = {k: f"{s.default} {s.allowed} {s.says}" for k, s in settings.items()}
    meant = [k for k, said in words.items() if re.search(rf"(?<![\w.]){re.escape(value)}(?![\w.])", said)]
    hint = f"; did you mean {' or '.join(f'{k}={value}' for k in meant)}?" if 0 < len(meant) < 3 else ""
    return f"{hint} (allowed: {some(list(settings), most=12)})"


def _everywhere(known: Iterable[str]) -> Iterator[tuple[Option, Setting]]:
    for option in (spine(), *(o for group in known for o in options(group))):
        for setting in option.settings:
            yield option, setting

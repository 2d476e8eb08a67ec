"""compressed-tensors' `quantization_config`: which module is quantized how, read and written.

The keys and their spelling are those that the library's `QuantizationConfig.model_dump()` has (0.20). A module's group
is found as the library finds it (`utils/match.py`): `ignore` first, then targets that are its exact name, then regular
expressions (`re:…`, matched from the start), then class names. Leaves do not know their module's class, so a class name
matches every module that nothing more specific does.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import Problem, did_you_mean
from pipeline.tensors.scheme import Scheme
from plugins.formats.compressed_tensors.schemes import FORMATS, arguments

WHERE = "config.json"
METHOD = "compressed-tensors"
MIXED = "mixed-precision"
# What would change the meaning of the weights if it were there and not heard.
MUST_BE_EMPTY = ("transform_config", "sparsity_config")
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Group:
    """A config group: its name, targets, weight arguments and format, and arguments of activations, or None."""

    name: str
    targets: tuple[str, ...]
    weights: Mapping[str, Any]
    format: str
    inputs: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Groups:
    """All config groups and the modules they leave out."""

    groups: tuple[Group, ...]
    ignore: tuple[str, ...]

    def of(self, module: str) -> Group | None:
        """The group that quantizes `module`."""
        if any(_named(module, pattern) for pattern in self.ignore):
            return None
        pairs = sorted(((t, g) for g in self.groups for t in g.targets), key=lambda p: ("re:" in p[0], p[0]))
        named = [g for t, g in pairs if _named(module, t)]
        return next(iter([*named, *(g for t, g in pairs if is_class(t))]), None)


def is_class(target: str) -> bool:
    """Whether a target is the name of a module class (`Linear`) and not of a module."""
    return not target.startswith("re:") and "." not in target and target[:1].isupper()


def read_groups(config: Mapping[str, Any]) -> tuple[Groups, list[Problem]]:
    """The groups that quantize weights, and what in the config cannot be followed."""
    given: Mapping[str, Any] = config.get("quantization_config") or {}
    problems: list[Problem] = []
    outer = given.get("format", "")
    problems += [
        Problem(WHERE, f"quantization_config.{key} is {given[key]!r}; only checkpoints without are read")
        for key in MUST_BE_EMPTY
        if given.get(key)
    ]
    groups = []
    for name, group in _object(given, "config_groups", problems).items():
        where = f"config_groups.{name}"
        if not isinstance(group, Mapping):
            problems.append(_wrong(where, group, "an object with targets and weights"))
            continue
        if group.get("weights") is None:
            continue  # activations only
        weights, targets = _object(group, "weights", problems, where), _patterns(group, "targets", problems, where)
        fmt = group.get("format") or outer
        if fmt == "naive-quantized":
            fmt = f"{weights.get('type', 'int')}-quantized"
        if fmt not in FORMATS:
            text = f"quantization_config.{where} has format {fmt!r}{did_you_mean(str(fmt), FORMATS)}"
            problems.append(Problem(WHERE, text))
            continue
        inputs = group.get("input_activations")
        groups.append(Group(name, targets, weights, fmt, inputs if isinstance(inputs, Mapping) else None))
    ignore = _patterns(given, "ignore", problems)
    if not groups and not problems:
        problems.append(Problem(WHERE, "quantization_config.config_groups has no group with weights"))
    return Groups(tuple(groups), ignore), problems


def _wrong(where: str, given: Any, wanted: str) -> Problem:
    return Problem(WHERE, f"quantization_config.{where} is {given!r:.60}; {wanted} is needed")


def _object(node: Mapping[str, Any], key: str, problems: list[Problem], within: str = "") -> Mapping[str, Any]:
    """The object under `key`; an empty one, and a problem, when it is something else."""
    given = node.get(key)
    if isinstance(given, Mapping) or given is None:
        return given or {}
    problems.append(_wrong(f"{within}.{key}".lstrip("."), given, "an object"))
    return {}


def _patterns(node: Mapping[str, Any], key: str, problems: list[Problem], within: str = "") -> tuple[str, ...]:
    """The names and patterns under `key`; none, and a problem, when it is no list of them."""
    given, where = node.get(key), f"{within}.{key}".lstrip(".")
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(p, str) for p in given):
        problems.append(_wrong(where, given, "a list of names"))
        return ()
    for pattern in given:
        try:
            re.compile(pattern.removeprefix("re:") if pattern.startswith("re:") else "")
        except re.error as why:
            problems.append(_wrong(where, pattern, f"a regular expression ({why})"))
            return ()
    return tuple(given)


def write_groups(
    modules: Mapping[str, tuple[Scheme, str] | None], inputs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """`quantization_config` for linear modules and their (scheme, format), None for those that are kept; `inputs`: the
    arguments of their activations, None: these stay as they are.

    The commonest scheme gets the class `Linear` as target, embeddings and every other scheme their modules' names. It
    comes last: the library takes the first target that a module has for the one that it was meant for, and warns of
    every target that was meant for none.
    """
    kinds = [k for k in modules.values() if k is not None]
    order = sorted(dict.fromkeys(kinds), key=lambda k: -kinds.count(k))
    order = [*order[1:], *order[:1]]
    groups = {}
    for i, kind in enumerate(order):
        mine = [m for m, k in modules.items() if k == kind]
        commonest = i == len(order) - 1
        named = mine if not commonest else [m for m in mine if "embed" in m.rpartition(".")[2]]
        groups[f"group_{i}"] = {
            "targets": [*patterns(named, modules), *(["Linear"] if commonest else [])],
            "weights": arguments(kind[0]),
            "input_activations": None if inputs is None else dict(inputs),
            "output_activations": None,
            "format": kind[1],
        }
    formats = list(dict.fromkeys(fmt for _, fmt in order))
    return {
        "config_groups": groups,
        "quant_method": METHOD,
        "kv_cache_scheme": None,
        "format": formats[0] if len(formats) == 1 else MIXED,
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "ignore": patterns([m for m, k in modules.items() if k is None], modules),
        "moe_sparsity_config": None,
    }


def patterns(names: Iterable[str], all_names: Iterable[str]) -> list[str]:
    """`names` as targets: one regular expression for those that differ in numbers only, if it matches no other name."""
    wanted = list(names)
    members: dict[str, list[str]] = {}
    for name in all_names:
        members.setdefault(NUMBER.sub("#", name), []).append(name)
    mine = set(wanted)
    out: dict[str, None] = {}
    for name in wanted:
        alike = members[NUMBER.sub("#", name)]
        if len(alike) > 1 and mine.issuperset(alike):
            out[f"re:{re.escape(NUMBER.sub('#', name)).replace(re.escape('#'), '[0-9]+')}$"] = None
        else:
            out[name] = None
    return list(out)


def _named(module: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    return pattern == module

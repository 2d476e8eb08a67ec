"""In what runs differ: settings first, as typed and as resolved, then what they read, the code, libraries and machine.

What says only where a run lies, or how it is shown, is no difference. A value that one run does not have is one, but
for code, libraries and kernels, of which a run that does less reaches less.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from pipeline.config.names import HOW
from pipeline.digest import identity
from pipeline.errors import SourceError, short, some
from pipeline.records.run import DESCRIPTION, Run
from pipeline.redact import hide
from pipeline.strictjson import read_object

Kind = Literal["typed", "setting", "input", "code", "library", "machine", "output"]
KINDS: Mapping[Kind, str] = {
    "typed": "as typed", "setting": "settings", "input": "files read", "code": "modules", "library": "libraries",
    "machine": "kernels and devices", "output": "files written (their bytes)",
}  # fmt: skip
PARTIAL: tuple[Kind, ...] = ("code", "library", "machine")  # compared where both have them
MADE: tuple[Kind, ...] = ("machine", "output")  # what a run came to, and was not made by
TOGETHER: Mapping[Kind, str] = {"code": "code:", "output": "bytes of"}  # what differs of them is said as one
NOWHERE = ("paths", "hydra", "progress", "debug", "overwrite")  # heads of settings that change nothing that is found
ABSENT = "–"
DIGITS = 12  # of a digest, that tell files apart for people
LONGEST = 300
"""Characters of a value."""

Facts = Mapping[tuple[Kind, str], Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which runs differ.

    Attributes:
        kind: of what.
        name: of the setting, file, library or module.
        values: of each run, as text; `–` where it has none.
    """

    kind: Kind
    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Differences:
    """Attributes:
    rows: what differs, kind by kind.
    equal: kind → how many others are the same in all.
    """

    rows: tuple[Difference, ...]
    equal: Mapping[Kind, int]


def facts(run: Run, manifest: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]) -> Facts:
    """All that makes the run what it is.

    Args:
        parts: as `parts_of` has them.
    """
    found: dict[tuple[Kind, str], Any] = {}
    for word in run.command:
        key, _, value = word.lstrip("+").partition("=")
        if key.partition(".")[0].partition("/")[0] not in HOW:
            found["typed", key] = hide(value) if not word.startswith("~") else "left out"
    here = str(run.config.get("paths.run") or run.folder)
    for key, value in run.config.items():
        if key.partition(".")[0] not in NOWHERE:
            found["setting", key] = _placeless(value, here)
    for node, its in parts.items():
        for name, digest in _items(its, "files"):
            found["input", name if ("input", name) not in found else f"{name} ({node})"] = _digest(digest)
        for name, digest in _items(its, "code"):
            found["code", name] = digest
        for name, version in _items(its, "libraries"):
            found["library", name] = version
        for name, value in _items(its, "found"):
            found["machine", name] = value
    for name, version in _items(manifest, "versions"):
        found["library", name] = version
    for name, digest in _written(run, manifest):
        found["output", name] = digest
    kernels: dict[str, set[str]] = {}
    for op, *backends in (b for b in manifest.get("backends") or () if isinstance(b, list) and b):
        kernels.setdefault(f"kernel of {op}", set()).update(map(str, backends))
    return found | {("machine", name): ", ".join(sorted(which)) for name, which in kernels.items()}


def parts_of(run: Run) -> dict[str, dict[str, Any]]:
    """Stage → parts of its key as `run.json` has them, and `found`: what the run found out of its machine. Of a run
    without it, or of an earlier version, nothing."""
    try:
        nodes = dict(read_object(run.folder / DESCRIPTION).get("nodes", {}))
        return {
            str(name): {**node["parts"], "key": node.get("key"), "found": (node.get("found") or {}).get("resolved", {})}
            for name, node in nodes.items()
        }
    except (SourceError, ValueError, TypeError, KeyError, AttributeError):  # `Run.problems` has it
        return {}


def differences(given: Sequence[Facts]) -> Differences:
    """In what runs with these facts differ."""
    rows: list[Difference] = []
    equal: dict[Kind, int] = {}
    for kind in KINDS:
        names = list(dict.fromkeys(name for one in given for k, name in one if k == kind))
        have = [
            one for one in given if any(k == kind for k, _ in one)
        ]  # a run without records is none without settings
        differing = []
        for name in names:
            values = [one.get((kind, name), _NONE) for one in (given if kind == "typed" else have)]
            if kind in PARTIAL:
                values = [v for v in values if v is not _NONE]
            if any(v != values[0] or (v is _NONE) != (values[0] is _NONE) for v in values[1:]):
                differing.append(name)
        equal[kind] = len(names) - len(differing)
        if kind in TOGETHER:
            rows += _states(kind, given, differing)
        else:
            differing.sort(key=lambda n: len({_shown(one[kind, n]) for one in given if (kind, n) in one}) < 2)
            texts = [(n, tuple(_shown(one.get((kind, n), _NONE)) for one in given)) for n in differing]
            texts = _merged(texts) if kind == "setting" else texts
            rows += [Difference(kind, name, values) for name, values in texts]
    typed = {(d.name, d.values) for d in rows if d.kind == "typed"}
    return Differences(tuple(d for d in rows if d.kind != "setting" or (d.name, d.values) not in typed), equal)


def is_seed(name: str) -> bool:
    """Whether it is a setting that makes repeats of runs that are otherwise alike."""
    return name.rpartition(".")[2] == "seed"


def alike(given: Facts) -> tuple[str, str]:
    """What repeats have in common, and the seeds that tell them apart, as keys."""
    settings, seeds = list[list[Any]](), list[list[Any]]()
    for kind, name in sorted(given):
        if kind not in MADE:
            (seeds if is_seed(name) else settings).append([kind, name, given[kind, name]])
    return identity(settings), identity([[name, str(value)] for _, name, value in seeds])


_NONE = object()


def _states(kind: Kind, given: Sequence[Facts], names: Sequence[str]) -> list[Difference]:
    """Modules, or files, that differ as one: which state of them each run has."""
    if not names:
        return []
    states = []
    for one in given:
        its = [(name, one[kind, name]) for name in names if (kind, name) in one]
        states.append(identity(its)[:DIGITS] if its else ABSENT)
    return [Difference(kind, some(list(names), most=2), tuple(states))]


def _written(run: Run, manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Files that it wrote, by their paths from its folder or from an export's, wherever these were then: name →
    digest, where that is on record."""
    roots = [str(manifest.get("run") or run.folder), *map(str, dict(_items(manifest, "exports")).values())]
    for row in manifest.get("outputs") or ():
        if isinstance(row, Mapping) and isinstance(digest := row.get("xxh3_128"), str):
            path = PurePath(str(row.get("path")))
            under = [PurePath(root) for root in roots if path.is_relative_to(root)]
            yield str(path.relative_to(max(under, key=lambda root: len(root.parts))) if under else path.name), digest


def _merged(rows: Sequence[tuple[str, tuple[str, ...]]]) -> list[tuple[str, tuple[str, ...]]]:
    """What several stages have as one setting (`stages.shard.engine.dtype`, `stages.evaluate.engine.dtype`) as one."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    held = {(name.rpartition(".")[2], values) for name, values in rows if name.startswith("stages.")}
    for name, values in rows:
        if not name.startswith("stages.") and "." in name and (name.rpartition(".")[2], values) in held:
            continue  # of a group that a stage holds: `quant.ties` is `stages.quantize.method.ties`
        head, _, rest = name.partition(".")
        stage, _, field = rest.partition(".")
        plain = head == "stages" and field
        found.setdefault((field if plain else name, values), []).append(stage if plain else "")
    return [(_place(name, stages), values) for (name, values), stages in found.items()]


def _place(name: str, stages: Sequence[str]) -> str:
    if not any(stages):
        return name
    return f"stages.{stages[0]}.{name}" if len(stages) == 1 else f"{name} (in {', '.join(stages)})"


def _items(tree: Mapping[str, Any], key: str) -> list[tuple[str, Any]]:
    given = tree.get(key)
    return [(str(k), v) for k, v in given.items()] if isinstance(given, Mapping) else []


def _digest(value: Any) -> str:
    """Of a file: its digest, or what stood for it while there was none."""
    return value[:DIGITS] if isinstance(value, str) else f"not digested: {identity(value)[:DIGITS]}"


def _placeless(value: Any, here: str) -> Any:
    """A value without the folder of its run, which every run has to itself."""
    if isinstance(value, str):
        return hide(value.replace(here, "RUN"))
    if isinstance(value, list):
        return [_placeless(v, here) for v in value]
    return value


def _shown(value: Any) -> str:
    if value is _NONE:
        return ABSENT
    return short(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str), LONGEST)

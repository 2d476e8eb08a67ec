"""What a node's result depends on, as one key. Whatever compares, reuses or goes on compares keys, and nothing else.

A key is the hash of its parts: the stage's config without the fields that cannot change a result, the keys of what it
takes, the content of the files that it reads, the code it can reach, the versions of the libraries that compute, and
what was resolved for it. Until a file's digest is known, its path, size, time and inode stand for its content; until
the run asked JAX, the options of an engine stand for the device and the dtypes that they come to.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from pipeline import backends
from pipeline.config.spine import RunConfig
from pipeline.config.synonyms import spelt
from pipeline.digest import InputFile, described, identity
from pipeline.errors import short
from pipeline.hooks import optional
from pipeline.ops import Kernel
from pipeline.planning.code import reach, sees_seed
from pipeline.planning.wiring import Node, Plan
from pipeline.stage import CHOSEN, NEUTRAL, Checkpoint, WorkHooks

FORMAT = 1  # of the parts; another one is another key
LONGEST_SHOWN = 60  # characters of a value

Known = Callable[[InputFile], str | None]


@dataclass(frozen=True)
class Key:
    """What the result of a node depends on.

    Attributes:
        node: name of the stage.
        parts: JSON-able, for people: `config` (dotted fields), `files` (name → digest, or what stands for it), `code`
            (module → digest), `libraries` (→ version), `resolved`, `takes` (parameter of `run` → id), `seed`.
        sources: parameter of `run` → node that it comes from.
        open: plugins, by their place in the config (`engine`; `evaluate:engine`, when what it takes is made by one),
            that know only in the run what their options come to.
    """

    node: str
    parts: Mapping[str, Any]
    sources: Mapping[str, str] = field(default_factory=dict)
    open: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def id(self) -> str:
        """32 hexadecimal digits; equal keys have equal ids, in any run and on any machine."""
        return identity([FORMAT, self.parts])

    @property
    def recipe(self) -> str:
        """How the node works, whatever it is given: the key without what it takes and reads."""
        return identity([FORMAT, {k: v for k, v in self.parts.items() if k not in ("takes", "files")}])


def node_keys(run: RunConfig, plan: Plan, known: Known = lambda file: None) -> dict[str, Key]:
    """The key of every node of a plan, in order; of one whose planning failed, too.

    Args:
        run: its config, in which secrets are digests.
        known: the digest of a file's content, where it is known although the `InputFile` has none.
    """
    found: dict[str, Key] = {}
    for name, node in plan.nodes.items():
        found[name] = _key(node, run.nodes.get(name, {}), run.spine.seed, plan, found, known)
    return found


def _key(node: Node, config: Any, seed: int, plan: Plan, before: Mapping[str, Key], known: Known) -> Key:
    stage = node.stage
    taken = _made_by(node) if _has_choices(stage) else None
    held = [*_plugins(stage, taken is not None), *_plugins(taken, False)]
    chosen = [m for h in held if isinstance(h, Kernel) for name in h.backends for m in backends.modules(h.op, name)]
    reached = reach([*(type(h).__module__ for h in held), *chosen])
    parts: dict[str, Any] = {
        "stage": f"{type(stage).__module__}.{type(stage).__qualname__}",
        "config": dict(_flat(_config(config, stage, taken is not None))),
        "takes": {param: before[source].id for param, source in node.inputs.items() if source in before},
        "files": _files(node, plan, known),
        "code": dict(reached.code),
        "libraries": dict(reached.libraries),
    }
    if sees_seed(type(stage)):
        parts["seed"] = seed
    if taken is not None:
        parts["resolved"] = dict(_flat(described(taken)))
    named = {name for h in held if isinstance(h, Kernel) for name in h.backends}
    if lacking := sorted(filter(backends.missing, named)):
        parts["resolved"] = {**parts.get("resolved", {}), "backends missing": lacking}
    upstream = {f"{s}:{where}": p for s in node.inputs.values() if s in before for where, p in before[s].open.items()}
    return Key(node.name, parts, dict(node.inputs), {**upstream, **dict(_open(stage))})


def keyed(run: RunConfig, plan: Plan, known: Known) -> None:
    """Give every node of the plan its key, and that to work which writes under it."""
    plan.keys = node_keys(run, plan, known)
    plan.stand_ins = _unread(plan)
    for name, node in plan.nodes.items():
        if optional(node.work, WorkHooks, "key") not in (None, plan.keys[name].id):  # a copy forgets what it worked out
            node.result = replace(node.result, key=plan.keys[name].id)


def _unread(plan: Plan) -> dict[str, Key]:
    """The keys of a plan as they are where no file's content is known but by what stands for it."""
    found: dict[str, Key] = {}
    for name, key in plan.keys.items():
        files = _files(plan.nodes[name], plan, lambda file: None)
        takes = {param: found[key.sources[param]].id for param in key.parts["takes"]}
        found[name] = replace(key, parts={**key.parts, "files": files, "takes": takes})
    return found


def settled(keys: Mapping[str, Key], contents: Mapping[str, str]) -> dict[str, Key]:
    """The same keys with what was found since: digests of files, by path."""
    found: dict[str, Key] = {}
    for name, key in keys.items():
        files = {f: _content(stand_in, contents) for f, stand_in in key.parts["files"].items()}
        takes = {p: found[key.sources[p]].id for p in key.parts["takes"]}
        found[name] = replace(key, parts={**key.parts, "files": files, "takes": takes})
    return found


def resolved(key: Key) -> Key:
    """The key as it is on this machine; imports the framework of an engine.

    Raises:
        ConfigError: what was asked for does not exist here (a device).
    """
    if not key.open:
        return key
    facts = {where: dict(plugin.identity()) for where, plugin in key.open.items()}
    said = {f"{where}.{name}" for where, found in facts.items() for name in found}
    config = {k: v for k, v in key.parts["config"].items() if k not in said}
    here = {**key.parts.get("resolved", {}), **dict(_flat(facts))}
    return replace(key, parts={**key.parts, "config": config, "resolved": here}, open={})


def _content(stand_in: Any, contents: Mapping[str, str]) -> Any:
    return stand_in if isinstance(stand_in, str) else contents.get(stand_in[0], stand_in)


def _files(node: Node, plan: Plan, known: Known) -> dict[str, Any]:
    """Name → digest, or what stands for it, of the files that this node reads and none before it did."""
    before = {f for s in node.inputs.values() for f in _inputs(plan.nodes[s])}
    source = node.result.source if isinstance(node.result, Checkpoint) else None
    found: dict[str, Any] = {}
    for file in _inputs(node):
        if file not in before:
            within = source if source not in (None, file.path) and file.path.is_relative_to(source or "") else None
            name = file.path.relative_to(within).as_posix() if within is not None else file.path.name
            while name in found:  # two texts of one name, from two folders
                name += "'"
            found[name] = file.xxh3_128 or known(file) or file.identity
    return found


def _inputs(node: Node) -> Sequence[InputFile]:
    """Files behind what a stage gives, and those that computing it reads."""
    given = node.result.inputs if isinstance(node.result, Checkpoint) else ()
    return [*given, *(node.takes.inputs if node.takes is not None else ())]


def _made_by(node: Node) -> Mapping[str, Any] | None:
    found = node.result.made_by if isinstance(node.result, Checkpoint) else optional(node.work, WorkHooks, "made_by")
    return found if isinstance(found, Mapping) else None


def _has_choices(stage: Any) -> bool:
    return is_dataclass(stage) and any(CHOSEN.items() <= f.metadata.items() for f in fields(stage))


def _counts(f: Any, taken: bool) -> bool:
    return not (NEUTRAL.items() <= f.metadata.items() or (taken and CHOSEN.items() <= f.metadata.items()))


def _config(node: Any, held: Any, taken: bool) -> Any:
    """The config of what is `held`, without the fields that cannot change a result."""
    if isinstance(node, Mapping):
        declared = {f.name: f for f in fields(held)} if is_dataclass(held) else {}
        return {
            str(k): _config(v, held.get(k) if isinstance(held, Mapping) else getattr(held, str(k), None), taken)
            for k, v in node.items()
            if str(k) not in declared or _counts(declared[str(k)], taken)
        }
    if isinstance(node, list | tuple):
        inner = held if isinstance(held, list | tuple) and len(held) == len(node) else [None] * len(node)
        return [_config(v, h, taken) for v, h in zip(node, inner, strict=True)]
    return _spelt(node, held)


def _spelt(given: Any, held: Any) -> Any:
    """A value as it is held, where that is what was given in other words: `float32` for fp32, 1 for 1.0."""
    if type(given) is int and type(held) is float:
        return held
    if isinstance(held, str):
        return held if type(given) in (int, float) and str(given) == held else spelt(given, (held,))
    return given


def _plugins(held: Any, taken: bool) -> Iterator[Any]:
    """`held` and the plugins in it whose code counts."""
    if isinstance(held, Mapping):
        for value in held.values():
            yield from _plugins(value, taken)
    elif isinstance(held, list | tuple):
        for value in held:
            yield from _plugins(value, taken)
    elif is_dataclass(held) and not isinstance(held, type):
        yield held
        for f in fields(held):
            if _counts(f, taken):
                yield from _plugins(getattr(held, f.name), taken)
    elif callable(getattr(held, "run", None)):  # a stage need be no dataclass
        yield held


def _open(held: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Plugins in `held` whose `identity()` says in the run what their options come to."""
    if isinstance(held, Mapping):
        for name, value in held.items():
            yield from _open(value, f"{where}.{name}".lstrip("."))
    elif is_dataclass(held) and not isinstance(held, type):
        if callable(getattr(held, "identity", None)):
            yield where, held
        for f in fields(held):
            if _counts(f, False):
                yield from _open(getattr(held, f.name), f"{where}.{f.name}".lstrip("."))


def _flat(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """`{"a": {"b": 1}}` as `a.b` → 1; lists of plain values stay together."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(inner, f"{where}.{name}" if where else str(name))
    elif isinstance(value, list | tuple) and any(isinstance(v, Mapping | list | tuple) for v in value):
        for i, inner in enumerate(value):
            yield from _flat(inner, f"{where}[{i}]")
    else:
        yield where, list(value) if isinstance(value, tuple) else value


class Difference(NamedTuple):
    """One part of a key that is new.

    Attributes:
        section: of the parts.
        name: of what is new in it.
        how: what it was and is, where that says something.
    """

    section: str
    name: str
    how: str

    def __str__(self) -> str:
        return " ".join(filter(None, (_SAID[self.section], self.name))) + self.how


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    """What of the parts of a key is new against those of another."""
    for section in _SAID:
        old, new = before.get(section), now.get(section)
        if old == new:
            continue
        if not isinstance(new, Mapping) and not isinstance(old, Mapping):
            yield Difference(section, "", f": {old} → {new}")
            continue
        old, new = old or {}, new or {}
        for name in dict.fromkeys([*new, *old]):
            if name in old and name in new and old[name] == new[name]:
                continue
            if section in ("code", "files", "takes"):
                how = "" if name in old and name in new else " (new)" if name in new else " (gone)"
            else:
                how = f": {_shown(old, name)} → {_shown(new, name)}"
            yield Difference(section, name, how)


_SAID = {
    "stage": "stage", "config": "field", "seed": "seed", "resolved": "resolved", "files": "file", "code": "module",
    "libraries": "library", "takes": "input",
}  # fmt: skip


def _shown(values: Mapping[str, Any], name: str) -> str:
    return short(str(values[name]), LONGEST_SHOWN) if name in values else "nothing"

"""What was typed and no stage of a run looks at: of choices it is a mistake, of single settings it is said in a line.

A setting is typed for several flows, for a sweep of which some jobs read it, out of habit; so it is no error, and the
run is the same without it. What a stage looks at is what its YAML refers to, what that refers to, and so on.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.config import extend
from pipeline.config.joined import of_guests
from pipeline.config.measuring import CONVERSION, MODEL, QUALITY
from pipeline.config.options import option_folders, options
from pipeline.config.spine import Spine
from pipeline.errors import Problem, some

_EACH = re.compile(r"\$\{(?:oc\.select:)?(\w+(?:\.\w+)*)[}\[,]")  # of what is looked up in a text
_ANY = "${hydra:overrides.task}"  # what is handed to other commands, whatever was typed
_HANDED = {f"${{of_{name}:{_ANY}}}": of for name, of in
           (("model", MODEL), ("conversion", CONVERSION), ("quality", QUALITY))}  # fmt: skip
_NAMED_BY = f"${{run_name:{_ANY}}}"  # of folders, by what was typed
ALWAYS = (*Spine.__dataclass_fields__, "tracker")  # what every run reads, whatever its stages
NOT_FLOWS = ("hydra", "zip")  # who composes, and sweeps
CHAT = ("engine", "sampling", "chat", "system")  # what the verb `chat` reads, which is no stage
MOST_NAMED = 3  # that do read it

_composed: set[str] = set()  # options that resolvers looked up by name since `begin`, as text


def begin() -> None:
    """A config is resolved anew."""
    _composed.clear()


def note(option: Any) -> None:
    """A resolver has composed this option, which no reference leads to: `activations=int8` names one."""
    _composed.add(str(option))


@dataclass(frozen=True)
class Reached:
    """What the nodes of a run look at.

    Attributes:
        paths: keys, with whatever lies below them.
        all_handed: something hands over all that was typed.
    """

    paths: frozenset[str]
    all_handed: bool

    def has(self, key: str) -> bool:
        """Whether `key`, or anything below it, is looked at."""
        above = {key[:at] for at, sign in enumerate(key) if sign == "."}
        return bool(self.paths & {key, *above}) or any(path.startswith(f"{key}.") for path in self.paths)

    @property
    def groups(self) -> set[str]:
        return {path.partition(".")[0] for path in self.paths}


def reached(raw: Mapping[str, Any], nodes: Iterable[str]) -> Reached:
    """What `nodes` of a config look at, and what every run does.

    Args:
        raw: the config with its references as they stand.
    """
    by_name = " ".join([*_composed, *of_guests(option_folders(None))])
    todo, known = {*nodes, *ALWAYS, *_EACH.findall(by_name)}, set[str]()
    all_handed = False
    while todo:
        known |= todo
        text = " ".join(_text(raw, path.split(".")) for path in todo).replace(_NAMED_BY, "")
        todo = {*_EACH.findall(text)}
        for how, roots in _HANDED.items():
            todo |= {*roots} if how in text else set()
            text = text.replace(how, "")
        all_handed |= _ANY in text
        todo -= known
    return Reached(frozenset(known), all_handed)


@dataclass(frozen=True)
class Flow:
    """Which stages a run has.

    Attributes:
        stages: that run.
        left_out: those of the flow that have nothing to do, by `calibrate=`.
        chosen: group → the option that the config was composed with.
        by_name: `stages=` was typed.
    """

    stages: Sequence[str]
    left_out: Collection[str]
    chosen: Mapping[str, str]
    by_name: bool

    @property
    def measures(self) -> bool:
        """Whether it is a benchmark: these are asked with whatever the runs are that they measure."""
        return any(name.startswith("bench") for name in self.stages)


def choices(typed: Sequence[str], config: Collection[str], flow: Flow, found: Reached) -> dict[str, Problem]:
    """Group → what is wrong with an option that was typed of it (`sampling=nucleus`), where nothing refers to it.

    Args:
        typed: overrides.
        config: names at the top of the config.
    """
    if flow.measures:
        return {}
    stages = ", ".join(flow.stages)
    where = f"nothing in stages=[{stages}]" if flow.by_name else f"nothing in flow={flow.chosen.get('flow')} ({stages})"
    said = "leave it out, or choose a flow or stages= that do"
    return {
        group: Problem(f"{group}={option}", f"{where} refers to {_place(group)}; {said}")
        for group, option in _pairs(typed)
        if _place(group) in {*config} - {*ALWAYS, "model", "stages"}  # the model says which stages there can be
        and options(group.partition("@")[0])
        and _place(group) not in found.groups
    }


def settings(typed: Sequence[str], config: Collection[str], flow: Flow, found: Reached) -> dict[str, Problem]:
    """Key → why nothing is made of a setting that was typed (`sampling.max_tokens=2`), and what would.

    Args: as `choices`.
    """
    if found.all_handed:
        return {}
    ours = {*config} - {*NOT_FLOWS}
    lines = {}
    for key, value in _pairs(typed):
        chooses = bool(options(key.partition("@")[0]))
        if chooses and not (flow.measures and _place(key) in ours - {"model", "stages"}):
            continue  # see `choices`
        what = _place(key) if chooses else key
        if what.partition(".")[0] in ours and not found.has(what):
            lines[key] = Problem(f"{key}={value}", _why(what, flow, found))
    return lines


def _why(key: str, flow: Flow, found: Reached) -> str:
    """Which of what it belongs to is not looked at, and who looks at that."""
    parts = key.split(".")
    above = [".".join(parts[: n + 1]) for n in range(len(parts))]
    what = next(name for name in above if not found.has(name))
    if parts[0] == "stages" and parts[1] in flow.left_out:
        return f"calibrate={flow.chosen.get('calibrate')} leaves the stage {parts[1]} out"
    stages, others = _readers(what, flow.chosen)
    said = f"no stage of this {'run' if flow.by_name else 'flow'} reads {what}"
    left = [name for name in stages if name in flow.left_out]
    if left and parts[0] == "calibrate":
        return f"{said}; {_and(left)}, which calibrate={flow.chosen.get('calibrate')} leaves out"
    named = [name for name in stages if name not in {*flow.stages, *left}] + others
    return f"{said}; {_and(named)}" if named else said


def _and(names: Sequence[str]) -> str:
    """`generate and chat do`."""
    if len(names) > MOST_NAMED + 1:
        return f"{some(names, most=MOST_NAMED)} do"
    *most, last = names
    return f"{', '.join(most)} and {last} do" if most else f"{last} does"


def _readers(path: str, chosen: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Stages that look at `path`; and what else does, as it would be typed."""
    stages, others, seen, todo = set[str](), set[str](), set[str](), {path}
    while todo:
        seen |= (now := todo)
        todo = set()
        for group, name, refers in _all_options(tuple(option_folders(extend.folder()))):
            if not any(Reached(refers, all_handed=False).has(one) for one in now):
                continue
            if group == "stages":
                stages.add(name)
            elif chosen.get(group, name) == name and group != "flow":
                todo.add(group.replace("/", "."))  # part of every run, so whoever looks at that does
            else:
                others.add(f"{group}={name}")
        todo -= seen
    talks = ["chat"] if any(one.partition(".")[0] in CHAT for one in seen) else []
    return sorted(stages, key=lambda name: (name.startswith("bench"), name)), [*talks, *sorted(others)]


@cache
def _all_options(folders: tuple[Path, ...]) -> list[tuple[str, str, frozenset[str]]]:
    """Group, name, and to what it refers, of every option but those that say settings alone."""
    found = []
    for folder in folders:
        for file in sorted(folder.rglob("*.yaml")):
            group = file.parent.relative_to(folder).as_posix()
            if group.partition("/")[0] not in (".", "hydra", "experiment"):
                text = file.read_text(encoding="utf-8", errors="replace")
                found.append((group, file.stem, frozenset(_EACH.findall(text))))
    return found


def _pairs(typed: Iterable[str]) -> list[tuple[str, str]]:
    """Key and value of what says or adds something."""
    found = (o.lstrip("+").partition("=") for o in typed if not o.startswith("~"))
    return [(key, value) for key, _, value in found]


def _place(group: str) -> str:
    """Where in the config an option of `group` stands."""
    return re.split("[/@]", group)[0]


def _text(raw: Any, path: Sequence[str]) -> str:
    """What stands at `path`, or above it, where that is a reference itself."""
    for name in path:
        if not isinstance(raw, Mapping):
            break
        raw = raw.get(name)
    return str(raw)

"""What a run is: `run.json` in its folder. Two runs with equal nodes, typed alike, that write to the same places give
equal bytes.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from pipeline.config.names import HOW
from pipeline.digest import InputFile, identity
from pipeline.errors import ConfigError, SourceError, short, shown
from pipeline.files import read_whole
from pipeline.hooks import optional
from pipeline.planning.identity import Difference, Key, Known, differences
from pipeline.planning.wiring import Plan
from pipeline.redact import hide
from pipeline.stage import WorkHooks


@dataclass(frozen=True)
class Description:
    """What `run.json` says.

    Attributes:
        id: of the run, from its first try to its last; results that it refers to carry it.
        nodes: stage → `key` and `parts` (see `pipeline.planning.identity`), as they were known when the run began, and
            at its end with all digests; where only the run could tell more, `resolved` and the final key as `found`.
        places: stage that writes → where to, relative to the run's folder where it lies in it.
        inputs: path → nbytes, mtime_ns, inode, and xxh3_128 as far as it was known.
        command: the overrides that say what is made, for people (`of_what_is_made`); of earlier versions nothing.
    """

    id: str
    nodes: Mapping[str, Mapping[str, Any]]
    places: Mapping[str, str]
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    command: Sequence[str] = ()

    def known(self, file: InputFile) -> str | None:
        """The digest of a file that is still what it was; as it was known then."""
        return self.inputs[str(file.path)]["xxh3_128"] if self.has(file) else None

    def has(self, file: InputFile) -> bool:
        """Whether the run read this file as it is."""
        before = self.inputs.get(str(file.path))
        return before is not None and {**before, "xxh3_128": None} == {**_input(file), "xxh3_128": None}

    def changed_inputs(self, now: "Description") -> Iterator[str]:
        """Paths of the files that are others, or not what they were."""
        for path, file in now.inputs.items():
            before = self.inputs.get(path)
            known = before is not None and before["xxh3_128"] and file["xxh3_128"]
            told_by = ("xxh3_128",) if known else ("nbytes", "mtime_ns", "inode")
            if before is None or any(before[k] != file[k] for k in told_by):
                yield path
        yield from (f"{path} (gone)" for path in self.inputs if path not in now.inputs)

    def new_in(self, now: "Description") -> list[tuple[str, Difference]]:
        """Stage and what is new in it, what it only takes from another stage aside; places that are others."""
        found: list[tuple[str, Difference]] = []
        for name in dict.fromkeys([*now.nodes, *self.nodes]):
            if name not in self.nodes or name not in now.nodes:
                found.append((name, Difference("stage", "", " is new" if name in now.nodes else " is gone")))
            else:
                parts = (d["parts"] for d in (self.nodes[name], now.nodes[name]))
                found += [(name, d) for d in differences(*parts)]
        for name, place in now.places.items():
            if self.places.get(name, place) != place:
                found.append((name, Difference("place", "", f": {self.places[name]} → {place}")))
        return [(n, d) for n, d in found if d.section != "takes"] or found


def describe(
    plan: Plan, keys: Mapping[str, Key], contents: Known, before: Description | None = None,
    found: Mapping[str, Key] | None = None,
) -> Description:  # fmt: skip
    """The description of a planned run, which goes on as `before` where that is the same.

    Args:
        contents: digests that are known.
        found: keys that were open, as they were in the run.
    """
    run_dir = plan.context.run_dir
    works = {n: t for n, w in plan.works.items() if (t := optional(w, WorkHooks, "target")) is not None}
    nodes: dict[str, Any] = {n: {"key": k.id, "parts": k.parts} for n, k in keys.items()}
    for name, key in (found or {}).items():
        nodes[name]["found"] = {"key": key.id, "resolved": key.parts.get("resolved", {})}
    return Description(
        before.id if before else identity([str(run_dir), os.getpid(), time.time_ns()]),
        json.loads(json.dumps(nodes)),
        {n: t.relative_to(run_dir).as_posix() if t.is_relative_to(run_dir) else str(t) for n, t in works.items()},
        {str(f.path): {**_input(f), "xxh3_128": f.xxh3_128 or contents(f)} for f in plan.inputs},
    )


def refuse(run_dir: Path, before: Description, found: Sequence[tuple[str, Difference]], now: Description) -> NoReturn:
    """Say what of the run in this folder is not what this run is.

    Raises:
        SourceError: only files that are read changed.
        ConfigError: anything else.
    """
    if not before.nodes:
        raise ConfigError(f"{run_dir} was made by an earlier version of Weightmill; overwrite=true makes it again")
    sections = {d.section for _, d in found}
    if sections == {"files"}:
        names = ", ".join(shown(list(before.changed_inputs(now))))
        raise SourceError(
            f"{names}: changed since the run in {run_dir} began; overwrite=true starts afresh from the new source"
        )
    if sections <= {"code", "libraries"}:
        said = ", ".join(shown(list(dict.fromkeys(str(d) for _, d in found))))
        raise ConfigError(f"{run_dir} was made by another version of the code ({said}); overwrite=true makes it again")
    said = _told_apart(before.command, now.command) or "; ".join(shown([f"{n}: {d}" for n, d in found], most=3))
    raise ConfigError(
        f"{run_dir} holds another run ({said}). paths.run=DIR puts this one elsewhere, overwrite=true replaces it"
    )


def of_what_is_made(command: Iterable[str]) -> tuple[str, ...]:
    """The overrides that say what a run is: not how it is done, nor where it lies."""
    return tuple(hide(o) for o in command if o.lstrip("+~").partition("=")[0].partition(".")[0] not in HOW)


def _told_apart(then: Sequence[str], now: Sequence[str]) -> str:
    """What two commands say each for itself of what is made; nothing where one is not known."""
    if not then or not now:
        return ""
    theirs, ours = (short(" ".join(o for o in one if o not in other), 400) for one, other in ((then, now), (now, then)))
    if theirs and ours:
        return f"{theirs}; this one: {ours}"
    return f"this one has {ours}" if ours else f"of {theirs}" if theirs else ""


def _input(file: InputFile) -> dict[str, Any]:
    return {"nbytes": file.nbytes, "mtime_ns": file.mtime_ns, "inode": file.inode, "xxh3_128": file.xxh3_128}


def read_description(run_dir: Path) -> Description | None:
    """What `run.json` in a run's folder says; None when there is none. That of an earlier version is of no nodes."""
    try:
        said = dict(json.loads(read_whole(run_dir / "run.json")))
        nodes, places, inputs = (dict(said.get(k, {})) for k in ("nodes", "places", "inputs"))
        command = [str(word) for word in said.get("command", ())]
        return Description(str(said.get("id", "")), nodes, places, inputs, command)
    except (SourceError, ValueError, TypeError):
        return None

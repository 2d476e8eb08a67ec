"""Why a stage has something to do: what is new in its key, against the nearest that an earlier run had."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import SourceError
from pipeline.files import read_whole
from pipeline.hooks import optional
from pipeline.planning.identity import Difference, Key, differences
from pipeline.planning.wiring import Plan
from pipeline.running.description import read_description
from pipeline.running.exports import adopts, places_of
from pipeline.running.results import FOLDER, PARTS, RESULT, Results, referring
from pipeline.running.tasks import keeps
from pipeline.stage import WorkHooks

VIEW, DONE = "a view", "done"


@dataclass(frozen=True)
class Reason:
    """About one stage.

    Attributes:
        node: its name.
        state: `done`, `to do`, or `a view`, of which nothing is done before somebody reads.
        where: of what is done already: the folder; `if …`, where only the run can tell whether it is that.
        against: what `new` compares with: the folder of a run, or of a result; empty when there is nothing.
        new: what is new in the key.
        open: what only the run can tell: plugins, by their place in the config.
    """

    node: str
    state: str
    where: str
    against: str
    new: tuple[Difference, ...]
    open: tuple[str, ...] = ()


@dataclass(frozen=True)
class Earlier:
    """A key that an earlier run had.

    Attributes:
        where: the folder.
        id: of the key, before the run could tell what was open.
        parts: what it is made of.
        found: key under which the result is kept; what was resolved.
    """

    where: Path
    id: str
    parts: Mapping[str, Any]
    found: Mapping[str, Any]


def reasons(plan: Plan, outputs: Path, results: Results) -> list[Reason]:
    """What of every stage is done already and where, or to do and why; nothing of the data is read."""
    earlier = list(_history(outputs, plan.context.run_dir, results.folder))
    apart: dict[Path, int] = {}  # how far a run is from this one, all in all: of stages as near, the nearest run's
    for where in dict.fromkeys(e.where for e in earlier):
        theirs = [e for e in earlier if e.where == where]
        apart[where] = sum(
            min(
                (len(_new(e, key)) for e in theirs if e.parts.get("stage") == key.parts["stage"]),
                default=len(key.parts),
            )
            for key in plan.keys.values()
        )
    earlier.sort(key=lambda e: apart[e.where])
    return [_reason(name, key, plan, results, earlier) for name, key in plan.keys.items()]


def done_already(plan: Plan, outputs: Path) -> list[str]:
    """Stages that have nothing to do, as far as their own keys and this run's folder say it: quick, for every plan."""
    results, mine = Results(outputs / FOLDER), list(_keys_of(plan.context.run_dir))
    return [name for name, key in plan.keys.items() if _reason(name, key, plan, results, mine).state == DONE]


def _reason(name: str, key: Key, plan: Plan, results: Results, earlier: list[Earlier]) -> Reason:
    node, same = plan.nodes[name], [e for e in earlier if e.id == key.id]
    if adopts(node.work):
        target: Path | None = optional(node.work, WorkHooks, "target")
        if places := places_of(results, key, *([target] if target is not None else [])):
            there = target if target in places else places[0]
            return Reason(name, DONE, str(there), "", ())
    elif keeps(node):
        for one in same:
            if key.open and (kept := results.folder / str(one.found.get("key", "-")) / RESULT).exists():
                here = ", ".join(f"{k}: {v}" for k, v in one.found.get("resolved", {}).items())
                return Reason(name, DONE, f"{kept.parent}, if here is still {here}", "", ())
        if not key.open and (results.folder / key.id / RESULT).exists():
            return Reason(name, DONE, str(results.folder / key.id), "", ())
    elif node.work is None and same:
        return Reason(name, VIEW, f"as in {same[0].where}", "", ())
    state = VIEW if node.work is None and not node.computes else "to do"
    alike = [e for e in earlier if e.parts.get("stage") == key.parts["stage"]]
    if not alike:
        return Reason(name, state, "", "", (), tuple(key.open))
    nearest = min(alike, key=lambda e: len(_new(e, key)))
    return Reason(name, state, "", str(nearest.where), _new(nearest, key), tuple(key.open))


def _new(earlier: Earlier, key: Key) -> tuple[Difference, ...]:
    return tuple(differences(earlier.parts, json.loads(json.dumps(key.parts))))


def _history(outputs: Path, run_dir: Path, results: Path) -> Iterator[Earlier]:
    """Keys of earlier runs, the newest first: of this run's folder, of the runs in `outputs`, of those that refer to a
    result, and of the results."""
    runs = {run_dir, *(outputs.iterdir() if outputs.is_dir() else ()), *referring(results)}
    for folder in sorted((r for r in runs if (r / "run.json").is_file()), key=_age):
        yield from _keys_of(folder)
    for kept in sorted(results.glob(f"*/{PARTS}"), key=lambda p: _age(p.parent)):
        with suppress(SourceError, ValueError):
            if parts := json.loads(read_whole(kept)):
                yield Earlier(kept.parent, kept.parent.name, parts, {})


def _keys_of(run: Path) -> Iterator[Earlier]:
    """Those of the run in this folder."""
    if (said := read_description(run)) is not None:
        for node in said.nodes.values():
            yield Earlier(run, str(node["key"]), node["parts"], node.get("found", {}))


def _age(folder: Path) -> float:
    return -max((p.stat().st_mtime for p in (folder / "run.json", folder / RESULT) if p.is_file()), default=0)

"""Which backend will run every op, on every tensor and layer: known before anything is read, compiled or traced.

What calls kernels says so in `calls(checkpoint)`: stages that change tensors, and engines that run models.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

from pipeline import backends
from pipeline.config.spine import RunConfig
from pipeline.errors import PlanError, Problem
from pipeline.hooks import lacking, optional
from pipeline.ops import Call, Choice, Kernel, RunsModels, kernels_of
from pipeline.planning.wiring import Plan
from pipeline.stage import Checkpoint, StageHooks
from pipeline.tensors.spec import group_of

ROWS = (1, 512)  # tokens at once: of a step, and of a prompt; a backend may be for one of them


def calls(plan: Plan) -> Iterator[tuple[str, Call, str]]:
    """(stage, call, for how many rows) of all nodes that were planned; what runs models says it twice, for `ROWS`."""
    for node in plan.nodes.values():
        given = [c for s in node.inputs.values() if isinstance(c := plan.nodes[s].result, Checkpoint)]
        if node.result is None and node.takes is None:  # planning it failed
            continue
        for checkpoint in given:
            try:
                if (ask := optional(node.stage, StageHooks, "calls")) is not None:
                    yield from ((node.name, call, "") for call in ask(checkpoint))
                for engine in _engines(node.stage) if node.computes else ():
                    for rows in ROWS:
                        found = engine.calls(checkpoint, rows=rows)
                        yield from ((node.name, call, f"{rows} row{'s' * (rows > 1)}") for call in found)
            except PlanError:  # said by the stage's own plan
                continue


def _engines(stage: Any) -> Iterator[Any]:
    for f in fields(stage) if is_dataclass(stage) else ():
        value = getattr(stage, f.name)
        if not lacking(value, RunsModels):
            yield value


def prepare(runs: Iterable[RunConfig], say: Callable[[str], None]) -> None:
    """Build what the chosen backends need; not before a plan that is only looked at."""
    backends.prepare((name for run in runs for kernel in kernels_of(run.stages) for name in kernel.backends), say)
    _chosen.cache_clear()  # what was missing may be there now


def refused(plan: Plan) -> list[Problem]:
    """What no chosen backend can do."""
    found: dict[Problem, None] = {}
    for _, call, _ in calls(plan):
        if (choice := _choice(call)).backend is None:
            text = f"no chosen backend can do this ({choice.reasons}); kernels.{call.kernel.op}=[…] chooses others"
            found[Problem(f"{call.kernel.op} of {call.where}", text)] = None
    return list(found)


def rows(plan: Plan) -> list[tuple[str, ...]]:
    """For people: (op, weights, where, stages, backend, declined), calls that are alike on one row."""
    choices: dict[tuple[str, str, str, str], dict[str, Choice]] = {}
    for stage, call, size in calls(plan):
        choices.setdefault((stage, call.kernel.op, call.encoding, call.where), {})[size] = _choice(call)
    alike: dict[tuple[str, ...], tuple[dict[str, None], dict[str, None]]] = {}
    for (stage, op, encoding, where), by_size in choices.items():
        stages, places = alike.setdefault((op, encoding, *_said(by_size)), ({}, {}))
        stages[stage] = places[where] = None
    return [
        (op, encoding, _places(places), ", ".join(stages), backend, declined)
        for (op, encoding, backend, declined), (stages, places) in alike.items()
    ]


def _choice(call: Call) -> Choice:
    return _chosen(call.kernel, tuple(call.given.items()))


@lru_cache(maxsize=4096)
def _chosen(kernel: Kernel, given: tuple[tuple[str, Any], ...]) -> Choice:
    """Layers are alike."""
    return kernel.choose(dict(given))


def _said(choices: dict[str, Choice]) -> tuple[str, str]:
    """(backend, what declined), by how many rows where that makes a difference."""
    backends = {rows: c.backend or "none" for rows, c in choices.items()}
    if len({*backends.values()}) == 1:
        backend = next(iter(backends.values()))
    else:
        backend = ", ".join(f"{name} ({rows})" for rows, name in backends.items())
    return backend, "; ".join(dict.fromkeys(c.reasons for c in choices.values() if c.declined))


def _places(names: dict[str, None], most: int = 3) -> str:
    """The tensors of all layers by one name, the first few of them, and how many there are."""
    groups = list(dict.fromkeys(_short(group_of(name)) for name in names))
    more = f" and {len(groups) - most} more" if len(groups) > most else ""
    return f"{', '.join(groups[:most])}{more} ×{len(names)}"


def _short(name: str) -> str:
    return name.removeprefix("model.").removeprefix("layers.*.").removesuffix(".weight")

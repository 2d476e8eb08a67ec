"""Plan: wire the stages into a DAG by the annotations of `run`, predict everything, and find every problem.

Planning calls `run` of lazy stages with real handles under a guard: headers are read, data bytes are not. So what the
plan says is what the graph will do, because it is the same objects.
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pipeline import meter
from pipeline.digest import InputFile, identity
from pipeline.errors import PlanError, Problem, StageError, WeightmillError
from pipeline.planning.budget import Budget
from pipeline.stage import Checkpoint, Chunk, Context, Footprint, Work
from pipeline.tensors.blocks import grain_of
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import Index, TensorStore

if TYPE_CHECKING:
    from pipeline.planning.identity import Key

_planning: ContextVar[str | None] = ContextVar("planning", default=None)


@dataclass(frozen=True, slots=True)
class StageStore:
    """A stage's store, timed under the stage's name; refuses to be read while planning."""

    store: TensorStore
    stage: str

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        return self.store.specs

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.store.metadata

    def grain(self, name: str) -> tuple[int, ...]:
        return grain_of(self.store, name)

    def read(self, name: str, index: Index = ()) -> Any:
        if (planning := _planning.get()) is not None:
            raise StageError(f"stage {planning!r} reads {name!r} in `run`; return a view, or define `plan` as well")
        with meter.stage(self.stage) as gave:
            value = self.store.read(name, index)
            gave[0] = value.nbytes
        return value


@dataclass(slots=True, eq=False)
class Node:
    """A stage in the DAG. Jobs of a sweep may share it.

    Attributes:
        inputs: parameter of `run` → name of the stage it comes from.
        optional: those parameters that `run` could do without; `plan` takes them by name.
        gives: the type that later stages see.
        result: the artefact itself (lazy), the `Work`, or a prediction (`plan`); None when planning it failed.
        computes: the stage has `plan`, which predicted `result`; its `run` happens in the graph.
        planned_again: something it takes comes from a stage that computes: it is planned again on the real thing.
    """

    name: str
    stage: Any
    inputs: dict[str, str]
    gives: Any
    result: Any = None
    computes: bool = False
    planned_again: bool = False
    optional: frozenset[str] = frozenset()

    @property
    def work(self) -> Work[Any] | None:
        return self.result if hasattr(self.result, "chunks") else None


@dataclass(slots=True)
class Plan:
    """What will happen: nodes in order, and everything that is wrong with it."""

    nodes: dict[str, Node]
    context: Context
    problems: list[Problem] = field(default_factory=list)
    failures: list[WeightmillError] = field(default_factory=list)
    memory: "MemoryPlan | None" = None
    keys: "Mapping[str, Key]" = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[InputFile, ...]:
        """Every file that is read, once."""
        found = (n.result.inputs for n in self.nodes.values() if isinstance(n.result, Checkpoint | Footprint))
        return tuple(dict.fromkeys(f for files in found for f in files))

    @property
    def works(self) -> dict[str, Work[Any]]:
        return {n.name: n.work for n in self.nodes.values() if n.work is not None}

    @property
    def chunks(self) -> list[Chunk]:
        return [c for w in self.works.values() for c in w.chunks]


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Predicted peak of all processes of the run together, in bytes.

    Attributes:
        base: interpreters, libraries, scheduler.
        task: the hungriest task.
        tasks: how many run at once.
        budget: what `dask.memory` allows.
        model: running models takes, one at a time.
    """

    base: int
    task: int
    tasks: int
    budget: Budget
    model: int = 0

    @property
    def conversion(self) -> int:
        return self.base + self.task * self.tasks

    @property
    def peak(self) -> int:
        return self.conversion + self.model

    @property
    def fits(self) -> bool:
        total = self.budget.total
        return self.conversion <= self.budget.conversion and (total is None or self.peak <= total)


def make_plan(
    stages: Mapping[str, Any],
    ctx: Context,
    had: Mapping[str, Node] | None = None,
    shared: Callable[[str, TensorStore], TensorStore] = lambda name, store: store,
) -> Plan:
    """Wire and plan every stage; problems are collected, not raised.

    Args:
        had: nodes that another job of a sweep has planned already, by stage.
        shared: stage and the store that it made → the store that later stages see.
    """
    problems: list[Problem] = []
    plan = Plan(wire(stages, problems), ctx, problems)
    stand_in: dict[str, Any] = {}  # results; for a stage that failed what it was given, so that later ones still plan
    for node in list(plan.nodes.values()):
        if had is not None and node.name in had:
            plan.nodes[node.name] = had[node.name]
            stand_in[node.name] = had[node.name].result
            continue
        given = {param: stand_in[source] for param, source in node.inputs.items() if source in stand_in}
        if not given.keys() | node.optional >= node.inputs.keys():
            continue
        node.computes = hasattr(node.stage, "plan")
        node.planned_again = any(plan.nodes[s].computes or plan.nodes[s].planned_again for s in node.inputs.values())
        try:
            with _guard(node.name):
                if node.computes:
                    must = [v for p, v in given.items() if p not in node.optional]
                    result = node.stage.plan(*must, **{p: v for p, v in given.items() if p in node.optional})
                else:
                    _all_predicted(plan, node, given)
                    result = node.stage.run(ctx, **given)
        except PlanError as why:
            plan.problems += why.problems
            plan.failures.append(why)
        except WeightmillError as why:
            plan.problems.append(Problem(f"stages.{node.name}", str(why)))
            plan.failures.append(why)
        else:
            result = timed(result, node.name, given.values())
            if isinstance(result, Checkpoint) and not passed_on(result, given.values()):
                result = replace(result, store=shared(node.name, result.store))
            node.result = stand_in[node.name] = result
            continue
        same_kind = [v for v in given.values() if isinstance(v, node.gives)] if isinstance(node.gives, type) else []
        if same_kind:
            stand_in[node.name] = same_kind[-1]
    plan.problems = list(dict.fromkeys(plan.problems))
    return plan


def _all_predicted(plan: Plan, node: Node, given: Mapping[str, Any]) -> None:
    """Raises PlanError when a stage that is planned by its `run` takes what a stage that computes did not predict."""
    unknown = [s for p, s in node.inputs.items() if given[p] is None and plan.nodes[s].computes]
    text = "takes the result of {!r}, whose `plan` predicts nothing; define `plan` here too, or predict there"
    if unknown:
        raise PlanError([Problem(f"stages.{node.name}", text.format(s)) for s in unknown])


def timed(result: Any, name: str, given: Iterable[Any]) -> Any:
    """A stage that gives a new store has it timed; one that passes its input on costs nothing."""
    if isinstance(result, Checkpoint) and not passed_on(result, given):
        return replace(result, store=StageStore(result.store, name))
    return result


def passed_on(result: Any, given: Iterable[Any]) -> bool:
    """Whether the store of `result` is that of something given."""
    return any(isinstance(v, Checkpoint) and v.store is getattr(result, "store", None) for v in given)


@contextmanager
def _guard(name: str) -> Iterator[None]:
    token = _planning.set(name)
    try:
        yield
    finally:
        _planning.reset(token)


def wire(stages: Mapping[str, Any], problems: list[Problem]) -> dict[str, Node]:
    """Edges from the annotations of every stage's `run`; what does not fit goes to `problems`."""
    nodes: dict[str, Node] = {}
    for name, stage in stages.items():
        try:
            hints = typing.get_type_hints(stage.run)
        except NameError as why:
            problems.append(Problem(f"stages.{name}", f"annotations of run: {why} (an import for type checkers only?)"))
            continue
        params = list(inspect.signature(stage.run).parameters.values())
        if not params or not all(p.kind is p.POSITIONAL_OR_KEYWORD for p in params):
            problems.append(Problem(f"stages.{name}", "run takes ctx, and then one named parameter for every artefact"))
            continue
        node = Node(name, stage, {}, _yields(hints.get("return", Any)))
        node.optional = frozenset(p.name for p in params[1:] if p.default is None)
        for param in (p.name for p in params[1:]):
            wanted = _without_none(hints.get(param)) if param in node.optional else hints.get(param)
            if wanted is None:
                problems.append(Problem(f"stages.{name}", f"parameter {param!r} of run has no type annotation"))
                continue
            by_name = nodes.get(param)
            source = by_name if by_name and _fits(by_name.gives, wanted) else None
            source = source or next((n for n in reversed(nodes.values()) if _fits(n.gives, wanted)), None)
            if source is None and param in node.optional:
                continue
            if source is None:
                have = ", ".join(f"{n.name} → {_show(n.gives)}" for n in nodes.values()) or "no stage before it"
                message = f"run needs a {_show(wanted)} ({param}), but before it: {have}"
                problems.append(Problem(f"stages.{name}", message))
                continue
            node.inputs[param] = source.name
        if node.inputs.keys() | node.optional >= {p.name for p in params[1:]}:
            nodes[name] = node
    return nodes


def _without_none(annotation: Any) -> Any:
    """T, of `T | None`."""
    kinds = [t for t in typing.get_args(annotation) if t is not type(None)]
    return kinds[0] if len(kinds) == 1 and type(None) in typing.get_args(annotation) else annotation


def _yields(annotation: Any) -> Any:
    """Work[T] yields T."""
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is Work else annotation


def _fits(given: Any, wanted: Any) -> bool:
    return given is wanted or (isinstance(given, type) and isinstance(wanted, type) and issubclass(given, wanted))


def _show(annotation: Any) -> str:
    return getattr(annotation, "__name__", str(annotation))


def chunk_key(plan: Plan, name: str, chunk: Chunk) -> str:
    """The hash of the node's key and the chunk, so that a journal line about another result never matches."""
    key = plan.keys[name].id if name in plan.keys else ""
    return f"{name}-{identity([key, [str(p) for p in chunk.pieces]])}"

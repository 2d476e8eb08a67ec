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
from pipeline.errors import PlanError, Problem, StageError, WeightmillError, did_you_mean, nearest
from pipeline.hooks import lacking, misspelt, optional
from pipeline.planning.budget import Budget
from pipeline.stage import Checkpoint, Chunk, Context, Footprint, Prediction, Stage, StageHooks, Work, WorkHooks
from pipeline.tensors.store import Index, StoreHooks, TensorStore
from pipeline.tensors.store_view import StoreView

if TYPE_CHECKING:
    from pipeline.planning.identity import Key
    from pipeline.planning.time import TimePlan

_planning: ContextVar[str | None] = ContextVar("planning", default=None)


@dataclass(frozen=True, slots=True)
class StageStore(StoreView):
    """A stage's store, timed under the stage's name; refuses to be read while planning."""

    store: TensorStore
    stage: str

    @property
    def seeded(self) -> Callable[[int], TensorStore] | None:
        """See `StoreHooks.seeded`."""
        own = optional(self.store, StoreHooks, "seeded")
        return None if own is None else lambda seed: replace(self, store=own(seed))

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
        gives_work: `run` is annotated as `Work[gives]`.
        result: the artefact itself (lazy), the `Work`, or what `plan` predicts of it; None when nothing is predicted,
            or planning it failed.
        takes: what computing it takes, by its `plan`; None when the stage has none, or that failed.
        computes: the stage has `plan`; its `run` happens in the graph.
        planned_again: something it takes comes from a stage that computes: it is planned again on the real thing.
    """

    name: str
    stage: Any
    inputs: dict[str, str]
    gives: Any
    gives_work: bool = False
    result: Any = None
    takes: Footprint | None = None
    computes: bool = False
    planned_again: bool = False
    optional: frozenset[str] = frozenset()

    @property
    def work(self) -> Work[Any] | None:
        return self.result if self.gives_work else None


def store_of(node: Node) -> TensorStore | None:
    """The tensors that a stage gives or writes."""
    if isinstance(node.result, Checkpoint):
        return node.result.store
    found: TensorStore | None = optional(node.work, WorkHooks, "store")
    return found


@dataclass(slots=True)
class Plan:
    """What will happen: nodes in order, and everything that is wrong with it."""

    nodes: dict[str, Node]
    context: Context
    problems: list[Problem] = field(default_factory=list)
    failures: list[WeightmillError] = field(default_factory=list)
    memory: "MemoryPlan | None" = None
    keys: "Mapping[str, Key]" = field(default_factory=dict)
    stand_ins: "Mapping[str, Key]" = field(default_factory=dict)  # the same, as if no large file had been read before
    time: "TimePlan | None" = None
    unread: Mapping[str, Problem] = field(default_factory=dict)  # `RunConfig.unread`
    tracker_nbytes: int = 0  # what the client of a tracker takes, beside all that is computed

    @property
    def refusal(self) -> PlanError:
        """All problems, as a plan and a run say them; with the exit code of what failed, where that is one."""
        kinds = {why.exit_code for why in self.failures}
        return PlanError(self.problems, exit_code=kinds.pop() if len(kinds) == 1 else None)

    @property
    def inputs(self) -> tuple[InputFile, ...]:
        """Every file that is read, once."""
        found = [f for n in self.nodes.values() if isinstance(n.result, Checkpoint) for f in n.result.inputs]
        return tuple(dict.fromkeys([*found, *(f for takes in self.takes.values() for f in takes.inputs)]))

    @property
    def takes(self) -> dict[str, Footprint]:
        """What the stages that compute take."""
        return {n.name: n.takes for n in self.nodes.values() if n.takes is not None}

    @property
    def written_nbytes(self) -> int:
        """Files of its works."""
        return sum(f.nbytes for w in self.works.values() for f in w.outputs)

    @property
    def kept_nbytes(self) -> int:
        """What stages that compute write, at most; of states that they save as many as their time makes, if that is
        known."""
        found = 0
        for name, takes in self.takes.items():
            found += takes.disk_nbytes
            if takes.saves is not None:
                found += takes.saves.nbytes * takes.saves.kept(None if self.time is None else self.time.of(name))
        return found

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
        lost = {param: plan.nodes[source] for param, source in node.inputs.items() if param not in given}
        # Without something that was to be read, as a teacher, a stage would miss what was asked for.
        if any(param not in node.optional or not source.inputs for param, source in lost.items()):
            continue
        predict = optional(node.stage, StageHooks, "plan")
        node.computes = predict is not None
        node.planned_again = any(plan.nodes[s].computes or plan.nodes[s].planned_again for s in node.inputs.values())
        try:
            with _guard(node.name):
                if predict is not None:
                    must = [v for p, v in given.items() if p not in node.optional]
                    said = predict(*must, **{p: v for p, v in given.items() if p in node.optional})
                    result, node.takes = _predicted(node, said)
                else:
                    _all_predicted(plan, node, given)
                    result = node.stage.run(ctx, **given)
                _well_formed(node, result)
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
        known = isinstance(node.gives, type) and node.gives is not Any  # a type, of which nothing is an instance
        same_kind = [v for v in given.values() if isinstance(v, node.gives)] if known else []
        if same_kind:
            stand_in[node.name] = same_kind[-1]
    plan.problems = list(dict.fromkeys(plan.problems))
    return plan


def _predicted(node: Node, said: Any) -> tuple[Any, Footprint]:
    """Both halves of what `plan` said.

    Raises:
        PlanError: it said something else.
    """
    if not isinstance(said, Prediction) or not isinstance(said.takes, Footprint):
        text = "gives a Prediction(result, takes=Footprint(…)), what the stage will give and what that takes"
        raise PlanError([Problem(f"stages.{node.name}", f"`plan` {text}; this one gave {said!r:.100}")])
    return said.result, said.takes


def _well_formed(node: Node, result: Any) -> None:
    """
    Raises:
        PlanError: `run` promises work and gives none; or a member of the work, or of the store, looks like one that it
            may have and is none.
    """
    wrong: tuple[str, ...] = ()
    if node.gives_work:
        if lacks := lacking(result, Work):
            wrong = (f"`run` gives a {type(result).__name__}, which is no Work: it lacks {', '.join(lacks)}",)
        else:
            wrong = misspelt(type(result), Work)
    elif isinstance(result, Checkpoint):
        wrong = misspelt(type(result.store), TensorStore)
    if wrong:
        raise PlanError(Problem(f"stages.{node.name}", text) for text in wrong)


def _all_predicted(plan: Plan, node: Node, given: Mapping[str, Any]) -> None:
    """Raises PlanError when a stage that is planned by its `run` takes what a stage that computes did not predict."""
    unknown = [s for p, s in node.inputs.items() if given[p] is None and plan.nodes[s].computes]
    text = "takes the result of {!r}, of which its `plan` predicts nothing; define `plan` here too, or predict it there"
    if unknown:
        raise PlanError([Problem(f"stages.{node.name}", text.format(s)) for s in unknown])


def timed(result: Any, name: str, given: Iterable[Any]) -> Any:
    """A stage that gives a new store has it timed; one that passes its input on costs nothing."""
    if not isinstance(result, Checkpoint) or passed_on(result, given):
        return result
    return replace(result, store=StageStore(result.store, name))


def passed_on(result: Checkpoint, given: Iterable[Any]) -> bool:
    """Whether the store of `result` is that of something given."""
    return any(isinstance(v, Checkpoint) and v.store is result.store for v in given)


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
        problems += [Problem(f"stages.{name}", text) for text in misspelt(type(stage), Stage)]
        try:
            hints = typing.get_type_hints(stage.run)
        except NameError as why:
            problems.append(Problem(f"stages.{name}", f"annotations of run: {why} (an import for type checkers only?)"))
            continue
        params = list(inspect.signature(stage.run).parameters.values())
        if not params or not all(p.kind is p.POSITIONAL_OR_KEYWORD for p in params):
            problems.append(Problem(f"stages.{name}", "run takes ctx, and then one named parameter for every artefact"))
            continue
        node = _node(name, stage, hints.get("return", Any))
        node.optional = frozenset(p.name for p in params[1:] if p.default is None)
        if isinstance(node.gives, type):
            problems += [Problem(f"stages.{name}", text) for text in misspelt(node.gives, None)]
        names = [p.name for p in params[1:]]
        wanted = {n: _without_none(hints[n]) if n in node.optional else hints[n] for n in names if n in hints}
        for param in (n for n in names if n not in hints):
            problems.append(Problem(f"stages.{name}", f"parameter {param!r} of run has no type annotation"))
        for param, kind in wanted.items():
            fitting = [n for n in nodes.values() if _fits(n.gives, kind)]
            if not fitting and param in node.optional:
                continue
            if not fitting:
                have = ", ".join(f"{n.name} → {_show(n.gives)}" for n in nodes.values()) or "no stage before it"
                message = f"run needs a {_show(kind)} ({param}), but before it: {have}"
                problems.append(Problem(f"stages.{name}", message))
                continue
            named = nodes.get(param)
            node.inputs[param] = (named if named in fitting else fitting[-1]).name
        problems += _ambiguous(node, wanted, nodes)
        if node.inputs.keys() | node.optional >= set(names):
            nodes[name] = node
    return nodes


def _without_none(annotation: Any) -> Any:
    """T, of `T | None`."""
    kinds = [t for t in typing.get_args(annotation) if t is not type(None)]
    return kinds[0] if len(kinds) == 1 and type(None) in typing.get_args(annotation) else annotation


def _node(name: str, stage: Any, annotation: Any) -> Node:
    """The node of a stage whose `run` gives `annotation`; Work[T] yields T."""
    if typing.get_origin(annotation) is Work:
        return Node(name, stage, {}, typing.get_args(annotation)[0], gives_work=True)
    return Node(name, stage, {}, annotation)


def _ambiguous(node: Node, wanted: Mapping[str, Any], nodes: Mapping[str, Node]) -> Iterator[Problem]:
    """A problem for each type of which several parameters are named like no stage, where there are several to take.

    One of them may take the latest; another would take the same, and a comparison compare a thing with itself.
    """
    open_: dict[Any, list[str]] = {}
    for param, source in node.inputs.items():
        if param != source:
            open_.setdefault(wanted[param], []).append(param)
    for kind, params in open_.items():
        able = [n.name for n in nodes.values() if _fits(n.gives, kind)]
        if len(params) > 1 and len(able) > 1:
            listed = " and ".join(map(repr, params))
            hint = did_you_mean(max(params, key=lambda p: len(nearest(p, able))), able)
            text = f"run takes {listed}, each a {_show(kind)}, and no stage before it is called either; at most one of "
            text += f"several takes the latest, so one of them must be the name of the stage that it is to take{hint}"
            yield Problem(f"stages.{node.name}", text)


def _fits(given: Any, wanted: Any) -> bool:
    return given is wanted or (isinstance(given, type) and isinstance(wanted, type) and issubclass(given, wanted))


def _show(annotation: Any) -> str:
    return getattr(annotation, "__name__", str(annotation))


def chunk_key(plan: Plan, name: str, chunk: Chunk) -> str:
    """The hash of the node's key and the chunk, so that a journal line about another result never matches."""
    key = plan.keys[name].id if name in plan.keys else ""
    return f"{name}-{identity([key, [str(p) for p in chunk.pieces]])}"

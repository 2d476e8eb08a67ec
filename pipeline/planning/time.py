"""How long a plan will take: the bytes of every part of it, at the rates at which this machine has done such before."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any

from pipeline.ops import kernels_of
from pipeline.planning.rates import Rates, cores
from pipeline.planning.sharing import SharedStore
from pipeline.planning.wiring import Node, Plan, store_of
from pipeline.units import show_seconds

BESIDE = "beside"  # what a stage does once, of one that does another thing again and again: it loads and compiles
APART = 2  # times the least that the most is, before both are said


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the time of a plan.

    Attributes:
        stage: whose it is.
        kind: what its rate goes by.
        nbytes: how much there is to do.
        lanes: in how many tasks at once.
        times: how often.
        seconds: that it will take; None: no rate was measured yet.
        range: the least and the most, by the measurements that there are.
        finish: the last step of work, once all its chunks are done.
        work: the stage whose work, or computing, it is a part of.
    """

    stage: str
    kind: str
    nbytes: int
    lanes: int = 1
    times: float = 1.0
    seconds: float | None = None
    range: tuple[float, float] = (0.0, 0.0)
    finish: bool = False
    work: str = ""


@dataclass(frozen=True, slots=True)
class TimePlan:
    """Predicted time.

    Attributes:
        parts: one after another; those of one work beside each other.
    """

    parts: tuple[Part, ...]

    @property
    def seconds(self) -> float | None:
        """Of the whole run; None where a part of it was never measured."""
        return _sum(self.parts)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Stages of which no rate was measured yet."""
        return tuple(dict.fromkeys(p.stage for p in self.parts if p.seconds is None))

    def of(self, stage: str) -> float | None:
        """Seconds of one stage; None where that, or part of it, was never measured."""
        return _sum([p for p in self.parts if p.stage == stage])

    def without(self, done: Collection[str]) -> "TimePlan":
        """Of what is left to do, where the work of some stages is done already."""
        return TimePlan(tuple(p for p in self.parts if p.work not in done))

    def said(self, stages: Collection[str] = ()) -> str:
        """For people: seconds of these stages, or of the whole run: from the least to the most, where measurements of
        the same disagree. Empty where none is known."""
        found = [p for p in self.parts if p.stage in stages] if stages else self.parts
        if (seconds := _sum(found)) is None:
            return ""
        least, most = (sum(p.range[i] for p in found) for i in range(2))
        return f"{show_seconds(least)} to {show_seconds(most)}" if most > APART * least else show_seconds(seconds)


def _sum(found: Sequence[Part]) -> float | None:
    known = [p.seconds for p in found if p.seconds is not None]
    return sum(known) if len(known) == len(found) else None


def time_plan(plan: Plan, rates: Rates, workers: int) -> TimePlan:
    """The time of `plan` with `workers` tasks at once."""
    found = []
    for part in parts(plan, workers):
        seconds, (least, most) = rates.seconds(part.kind, part.nbytes), rates.range(part.kind, part.nbytes)
        share = part.times / part.lanes
        found.append(replace(part, seconds=seconds and seconds * share, range=(least * share, most * share)))
    return TimePlan(tuple(found))


def parts(plan: Plan, workers: int) -> Iterator[Part]:
    """What there is to do, without its time. What works of several jobs share is read once."""
    shared = [n for n in plan.nodes.values() if isinstance(store_of(n), SharedStore)]
    once = {n.name for one in shared for n in [one, *_views(plan, one)]}
    seen: set[str] = set()
    for node in plan.nodes.values():
        if node.takes is not None:
            if node.takes.moved_nbytes:
                kind = " ".join(filter(None, (_class(node.stage), node.takes.rate, _backends(node.stage))))
                if times := node.takes.times:
                    yield Part(node.name, f"{kind} {BESIDE}", 1, work=node.name)
                yield Part(node.name, kind, node.takes.moved_nbytes, times=times or 1.0, work=node.name)
        elif node.work is not None and node.work.chunks:
            lanes = max(1, min(workers, cores(), len(node.work.chunks)))
            for one in [*_views(plan, node), node]:
                if one.name in seen:
                    continue
                seen |= {one.name} & once
                store = store_of(one)
                nbytes = sum(s.nbytes for s in store.specs.values()) if store is not None else 0
                nbytes = nbytes or sum(c.nbytes_in for c in node.work.chunks)
                yield Part(one.name, _kind(plan, one), nbytes, lanes, work=node.name)
            if written := sum(f.nbytes for f in node.work.outputs):
                yield Part(node.name, f"{_class(node.stage)} finish", written, finish=True, work=node.name)


def learn(
    rates: Rates, plan: Plan, workers: int, records: Sequence[Mapping[str, Any]], computed: Mapping[str, float],
    finished: Mapping[str, float], repeated: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Take in what a run has measured: none of a run that went on from an earlier one, which did part of the work.

    Args:
        records: of the chunks.
        computed: seconds of the stages that compute.
        finished: seconds of the last steps of works.
        repeated: of stages that do one thing again and again, the seconds that this took, of all of theirs, and times.
    """
    if any(r.get("reused") for r in records):
        return
    spent: dict[str, float] = {}
    for record in records:
        for name, tally in record["stages"].items():
            spent[name] = spent.get(name, 0.0) + tally["seconds"]
    shared = min(workers, cores()) / workers  # of a core, that a task had while others ran
    for part in parts(plan, workers):
        if part.finish:
            rates.learn(part.kind, part.nbytes, finished.get(part.stage, 0.0))
        elif part.stage in plan.takes and plan.takes[part.stage].times:
            seconds, times = repeated.get(part.stage, (0.0, 0.0))
            if part.kind.endswith(BESIDE):
                rates.learn(part.kind, part.nbytes, computed.get(part.stage, 0.0) - seconds)
            elif times:
                rates.learn(part.kind, part.nbytes, seconds / times)
        elif part.stage in plan.takes:
            rates.learn(part.kind, part.nbytes, computed.get(part.stage, 0.0))
        else:
            rates.learn(part.kind, part.nbytes, spent.get(part.stage, 0.0) * shared)


def _views(plan: Plan, node: Node) -> list[Node]:
    """The lazy views that `node` reads through, in order; a stage that passes its input on is none."""
    found: dict[str, Node] = {}
    todo = list(node.inputs.values())
    while todo:
        one = plan.nodes[todo.pop()]
        if one.name in found or one.computes or one.work is not None:
            continue
        found[one.name] = one
        todo += one.inputs.values()
    return [n for n in plan.nodes.values() if n.name in found and _has_own_store(plan, n)]


def _has_own_store(plan: Plan, node: Node) -> bool:
    mine = store_of(node)
    return mine is not None and all(store_of(plan.nodes[s]) is not mine for s in node.inputs.values())


def _kind(plan: Plan, node: Node) -> str:
    """What the rate of a lazy stage, or of work, goes by: its class, what becomes of what, its switches, the plugins
    that are none unless they are asked for, and kernels."""
    before: dict[str, Any] = {}
    for source in node.inputs.values():
        if (store := store_of(plan.nodes[source])) is not None:
            before |= store.specs
    store = store_of(node)
    after = store.specs if store is not None else {}
    changed = sorted({f"{before[n].encoding}→{s.encoding}" for n, s in after.items() if n in before and before[n] != s})
    if not changed:
        changed = sorted({s.encoding for s in (after or before).values()})
    given = [(f, getattr(node.stage, f.name)) for f in fields(node.stage)] if is_dataclass(node.stage) else []
    on = [f.name for f, value in given if value is True]
    on += [type(value).__qualname__ for f, value in given if f.default is None and is_dataclass(value)]
    return " ".join(filter(None, (_class(node.stage), ",".join(changed), *on, _backends(node.stage))))


def _class(stage: Any) -> str:
    return f"{type(stage).__module__}.{type(stage).__qualname__}"


def _backends(stage: Any) -> str:
    """The kernels of a stage and the backends chosen for them."""
    return ",".join(sorted({f"{k.op}={'/'.join(k.backends)}" for k in kernels_of(stage)}))

"""Jobs that run together: one node for what several of them need, and one task for what reads the same.

Every job is planned by itself first. What has one key in several plans then becomes one node, made once. Chunks of
works that read one store are cut alike and grouped: a group is a task, reads each box once, and does its chunks one
after another.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.spine import RunConfig
from pipeline.errors import ConfigError, PlanError, Problem
from pipeline.hooks import optional
from pipeline.planning.sharing import Box, SharedStore, bounds, within
from pipeline.planning.wiring import MemoryPlan, Node, Plan, make_plan
from pipeline.stage import Checkpoint, Chunk, WorkHooks
from pipeline.tensors.blocks import common
from pipeline.tensors.store import TensorStore

if TYPE_CHECKING:
    from pipeline.planning.time import TimePlan


@dataclass(frozen=True, slots=True)
class Job:
    """A run of a sweep, or the only one.

    Attributes:
        run: its config.
        run_dir: its folder, absolute.
        command: overrides, as they go into the record.
        name: what tells it from the other jobs; for people.
    """

    run: RunConfig
    run_dir: Path
    command: tuple[str, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What `-m` asks for.

    Attributes:
        jobs, overrides: of each, side by side; overrides as the sweeper made them.
        folder: of the sweep, for the comparison.
        config: of the sweep as YAML, for the record.
    """

    jobs: Sequence[Job]
    overrides: Sequence[Sequence[str]]
    folder: Path
    config: str


@dataclass(frozen=True, slots=True)
class Member:
    """A chunk of the work of a node.

    Attributes:
        job: whose it is.
        stores: what it rests on that others read, too.
    """

    job: int
    node: Node
    chunk: Chunk
    stores: tuple[SharedStore, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Chunks that one task does, in order.

    Attributes:
        nbytes_in: stored bytes that are read for them; what several need, once.
        peak_nbytes: memory the task takes at its worst: a chunk, and what is kept for those that follow.
    """

    members: tuple[Member, ...]
    nbytes_in: int
    peak_nbytes: int


@dataclass
class Sweep:
    """What will happen: a plan for each job, with nodes in common, and the groups of their chunks.

    Attributes:
        jobs, plans: side by side.
        groups: of all jobs whose plan has no problem, in the order in which they are best done.
        memory, time: of all together.
    """

    jobs: Sequence[Job]
    plans: list[Plan]
    groups: list[Group] = field(default_factory=list)
    memory: MemoryPlan | None = None
    time: "TimePlan | None" = None

    @property
    def sound(self) -> list[int]:
        """Jobs whose plan has no problem; a single one counts, so that all of its problems are found."""
        return [i for i, plan in enumerate(self.plans) if not plan.problems or len(self.plans) == 1]

    @cached_property
    def names(self) -> dict[Node, str]:
        """Every node, once, with a name of its own: its stage's, and the first job's that needs it."""
        alone = len(self.plans) == 1
        found: dict[Node, str] = {}
        for i in self.sound:
            for node in self.plans[i].nodes.values():
                found.setdefault(node, node.name if alone else f"{i + 1}.{node.name}")
        return found

    @cached_property
    def homes(self) -> dict[Node, int]:
        """Node → the first job that needs it, by whose plan it was made."""
        found: dict[Node, int] = {}
        for i in self.sound:
            for node in self.plans[i].nodes.values():
                found.setdefault(node, i)
        return found

    @property
    def whole(self) -> Plan:
        """The nodes of all jobs as one plan, under their names."""
        nodes = {}
        for node, name in self.names.items():
            takes = [self.names[source] for source in self.inputs_of(node)]
            nodes[name] = replace(node, name=name, inputs=dict(zip(node.inputs, takes, strict=True)))
        return Plan(nodes, self.plans[0].context, memory=self.memory, time=self.time)

    def inputs_of(self, node: Node) -> list[Node]:
        """The nodes whose results `node` takes, as its parameters have them."""
        nodes = self.plans[self.homes[node]].nodes
        return [nodes[source] for source in node.inputs.values()]

    def users(self, node: Node) -> list[int]:
        """Jobs that need it."""
        return [i for i in self.sound if self.plans[i].nodes.get(node.name) is node]


def distinct(jobs: Sequence[Job]) -> list[int]:
    """For each job the first that is the same: equal runs in one folder are one.

    Raises:
        PlanError: different runs in one folder, or different exports.
    """
    first: dict[Path, int] = {}
    found = [first.setdefault(job.run_dir, i) for i, job in enumerate(jobs)]
    problems = [
        Problem(
            "paths.run", f"{jobs[i].run_dir} is the folder of {jobs[i].name!r} and of {job.name!r}; jobs have one each"
        )
        for job, i in zip(jobs, found, strict=True)
        if (jobs[i].run.nodes, jobs[i].run.spine) != (job.run.nodes, job.run.spine)
    ]
    exports: dict[str, int] = {}
    for i, job in enumerate(jobs):
        path = job.run.nodes.get("export", {}).get("path")
        other = exports.setdefault(str(path), i) if path else i
        if _until_export(jobs[other]) != _until_export(job):
            text = f"{path} is where {jobs[other].name!r} and {job.name!r} would write; without it each has a place"
            problems.append(Problem("export.path", text))
    if problems:
        raise PlanError(problems, exit_code=ConfigError.exit_code)
    return found


def _until_export(job: Job) -> list[tuple[str, Any]]:
    """The stages that an export is made by, about: those that come before it, and it."""
    names = [*job.run.nodes]
    return [(name, job.run.nodes[name]) for name in names[: names.index("export") + 1 if "export" in names else 0]]


def together(jobs: Sequence[Job], plans: Sequence[Plan], chunk_elems: int) -> Sweep:
    """Plans of several jobs as one: equal nodes are one node, and stores that several works read are shared.

    Args:
        plans: each by itself; those with problems stay as they are.
        chunk_elems: elements that a chunk is to have at most.
    """
    sweep = Sweep(jobs, list(plans))
    if len(sweep.sound) == 1:
        return sweep
    keys = {i: {name: key.id for name, key in plans[i].keys.items()} for i in sweep.sound}
    grains = _grains(sweep, keys, chunk_elems)
    made: dict[tuple[str, str], Node] = {}
    for i in sweep.sound:
        mine = keys[i]

        def shared(name: str, store: TensorStore, mine: Mapping[str, str] = mine) -> TensorStore:
            return SharedStore(store, mine[name], grains[mine[name]]) if mine[name] in grains else store

        found = {name: made[name, key] for name, key in mine.items() if (name, key) in made}
        had = {name: node for name, node in found.items() if node.inputs == plans[i].nodes[name].inputs}
        sweep.plans[i] = plan = make_plan(jobs[i].run.stages, plans[i].context, had, shared)
        made |= {(name, mine[name]): node for name, node in plan.nodes.items() if node.work is None}
    return sweep


def _grains(
    sweep: Sweep, keys: Mapping[int, Mapping[str, str]], chunk_elems: int
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Key of every store that several works read, or stages on the way to them → tensor → how all cut it.

    A work that must take more than a chunk is left as it is, and the others do not follow it.
    """
    readers: dict[str, set[tuple[str, ...]]] = {}
    below: dict[str, list[tuple[Any, TensorStore]]] = {}
    for i in sweep.sound:
        for work in (n for n in sweep.plans[i].nodes.values() if n.work is not None):
            for node in (work, *_above(sweep.plans[i], work)):
                reader = (node.name, keys[i][node.name], *([str(i)] if node is work else []))
                for source in node.inputs.values():
                    given = sweep.plans[i].nodes[source]
                    if isinstance(given.result, Checkpoint) and not (given.computes or given.planned_again):
                        readers.setdefault(keys[i][source], set()).add(reader)
                        below.setdefault(keys[i][source], []).append((work.work, given.result.store))
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for key in (k for k, several in readers.items() if len(several) > 1):
        found[key] = {}
        for work, store in below[key]:
            left_out, cut = optional(work, WorkHooks, "ignored"), optional(work, WorkHooks, "grain")
            for name, spec in work.store.specs.items() if cut is not None else ():
                if name in left_out or name not in store.specs or store.specs[name].shape != spec.shape:
                    continue
                grain = cut(name)
                both = common(grain, found[key].get(name, (1,) * len(spec.shape)))
                if prod(min(g, n) for g, n in zip(both, spec.shape, strict=True)) <= chunk_elems:
                    found[key][name] = both
    return found


def _above(plan: Plan, node: Node) -> Iterator[Node]:
    """Every node that `node` reads through, once: not beyond one that computes, whose result has bytes of its own."""
    seen: dict[Node, None] = {}
    todo = [plan.nodes[s] for s in node.inputs.values()]
    while todo:
        if (one := todo.pop()) not in seen:
            seen[one] = None
            todo += [] if one.computes else [plan.nodes[s] for s in one.inputs.values()]
    return iter(seen)


def group(sweep: Sweep, limit: int) -> list[Group]:
    """All chunks of all works, those that read the same together, as long as a task takes at most `limit` bytes."""
    members: list[Member] = []
    for i in sweep.sound:
        for node in sweep.plans[i].nodes.values():
            if node.work is not None:
                above = {id(s): s for n in _above(sweep.plans[i], node) if (s := _shared(n)) is not None}
                members += [Member(i, node, chunk, tuple(above.values())) for chunk in node.work.chunks]
    found: list[Group] = []
    todo = [members]
    while todo:
        for some in _overlapping(todo.pop()):
            made = _group(some)
            if len(some) > 1 and made.peak_nbytes > limit:
                largest = max(some, key=lambda m: m.chunk.peak_nbytes)
                found.append(_group([largest]))
                todo.append([m for m in some if m is not largest])
            else:
                found.append(made)
    place = {id(m): at for at, m in enumerate(members)}
    return sorted(found, key=lambda g: min(place[id(m)] for m in g.members))


def _shared(node: Node) -> SharedStore | None:
    store = node.result.store if isinstance(node.result, Checkpoint) else None
    return store if isinstance(store, SharedStore) else None


def _overlapping(members: Sequence[Member]) -> Iterator[list[Member]]:
    """The members in sets whose boxes of a shared store have something in common."""
    parent = list(range(len(members)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    regions: dict[tuple[str, str], dict[Any, tuple[Box, int]]] = {}  # of (store, tensor): box → its first member
    for i, member in enumerate(members):
        for piece in member.chunk.pieces if member.stores else ():
            tensor, at = bounds(piece)
            for store in member.stores:
                _, first = regions.setdefault((store.key, tensor), {}).setdefault(at, (tuple(piece.index), i))
                parent[root(i)] = root(first)
    for boxes in regions.values():
        ordered = sorted(boxes.items())
        for n, (at, (_, i)) in enumerate(ordered):
            for other, (_, j) in ordered[n + 1 :]:
                if other and other[0][0] >= at[0][1]:  # begins beyond it, and so do all that follow
                    break
                if all(a < d and c < b for (a, b), (c, d) in zip(at, other, strict=True)):
                    parent[root(j)] = root(i)
    sets: dict[int, list[Member]] = {}
    for i, member in enumerate(members):
        sets.setdefault(root(i), []).append(member)
    yield from sets.values()


def _group(members: Sequence[Member]) -> Group:
    """In the order in which they are done: what holds others before these, and what reads one store together."""
    if len(members) == 1:
        chunk = members[0].chunk
        return Group(tuple(members), chunk.nbytes_in, chunk.peak_nbytes)
    order: dict[tuple[str, ...], int] = {}
    for member in members:
        order.setdefault(_keys(member), len(order))
    ordered = sorted(members, key=lambda m: (-max(_elems(p.index) for p in m.chunk.pieces), order[_keys(m)]))
    last = {(key, p.tensor): n for n, m in enumerate(ordered) for p in m.chunk.pieces for key in _keys(m)}
    kept: dict[tuple[str, str], int] = {}  # (store, tensor) → bytes
    seen: dict[tuple[str, str], list[Box]] = {}
    peak = read = 0
    for n, member in enumerate(ordered):
        elems = fresh = 0
        for piece in member.chunk.pieces:
            box, count = tuple(piece.index), _elems(piece.index)
            elems += count
            there = [seen.setdefault((s.key, piece.tensor), []) for s in member.stores]
            fresh += count if not any(within(box, b) for boxes in there for b in boxes) else 0
            for store, boxes in zip(member.stores, there, strict=True):
                spec = store.specs.get(piece.tensor)
                if spec is not None and not any(within(box, b) for b in boxes):
                    boxes.append(box)
                    key = store.key, piece.tensor
                    kept[key] = kept.get(key, 0) + round(spec.nbytes * count / max(1, spec.size))
        read += round(member.chunk.nbytes_in * fresh / max(1, elems))
        peak = max(peak, sum(kept.values()) + member.chunk.peak_nbytes)
        for key in [k for k in kept if last[k] == n]:
            del kept[key]
    return Group(tuple(ordered), read, peak)


def _keys(member: Member) -> tuple[str, ...]:
    return tuple(store.key for store in member.stores)


def _elems(box: Box) -> int:
    return prod(s.stop - s.start for s in box)

"""Plans as tasks: each stage's handle, and for work its beginning, its chunks and its end.

Everything here runs where the tasks run, in worker processes too.
"""

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import meter, tracing
from pipeline.digest import InputFile, digest_file, identity, unchanged
from pipeline.errors import StageError, StorageError
from pipeline.hooks import optional
from pipeline.model_slot import ModelSlot
from pipeline.planning import sharing
from pipeline.planning.identity import Key, resolved, settled
from pipeline.planning.sweep import Sweep
from pipeline.planning.wiring import Node, chunk_key, timed
from pipeline.records.system import monitored
from pipeline.running import gang, member, peak, text_stream
from pipeline.running.graph import Failure, Ref, Task, attempt
from pipeline.running.lane import lane
from pipeline.running.results import FOLDER, Results, keepable, packed, unpacked
from pipeline.stage import Checkpoint, Chunk, Context, Exported, StageHooks, Work
from pipeline.tensors import rooms
from pipeline.tensors.spec import TensorSpec
from pipeline.units import show_bytes

LARGE_NBYTES = 1 << 30  # of a file whose digest takes long enough to be said


@dataclass(frozen=True, slots=True)
class Try:
    """What a job brings to a run of the graph.

    Attributes:
        known: what its journal says an earlier try has done, by task.
        fresh: nothing that an earlier try left counts.
        digest: inputs whose digests are wanted.
        contents: path → digest, of inputs that are known.
        there: stage → its output that is in its place already.
    """

    known: Mapping[str, Any]
    fresh: bool
    digest: tuple[InputFile, ...]
    contents: Mapping[str, str]
    there: Mapping[str, Exported]


@dataclass(frozen=True, slots=True)
class Graph:
    """Tasks, in the order in which they are best done, and whose they are.

    Attributes:
        owners: task → jobs that need it.
        chunks: task that does chunks → for each of its results the job, and the chunk's key in that job's journal.
        inputs: task → the file that it digests.
        keys: task that settles the keys of a job's nodes → the job.
    """

    tasks: list[Task] = field(default_factory=list)
    owners: dict[str, tuple[int, ...]] = field(default_factory=dict)
    chunks: dict[str, tuple[tuple[int, str], ...]] = field(default_factory=dict)
    inputs: dict[str, InputFile] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)

    def add(self, owners: Iterable[int], *tasks: Task) -> None:
        self.tasks.extend(tasks)
        self.owners.update((t.key, tuple(owners)) for t in tasks)


def build_tasks(sweep: Sweep, tries: Mapping[int, Try], models: ModelSlot | None = None) -> Graph:
    """The jobs in `tries` as tasks: digests of inputs, each stage's handle, and for work its beginning, chunks and end.

    What several jobs need is one task. The result of a node is under its name in the sweep.

    Args:
        models: holds models from stage to stage, in this process; None: every task lets go of what it loaded.
    """
    graph = Graph()
    files: dict[InputFile, list[int]] = {}
    for i, one in tries.items():
        for file in one.digest:
            files.setdefault(file, []).append(i)
    for file, users in files.items():
        known = next((r for i in users if (r := tries[i].known.get(_input_key(file))) is not None), None)
        graph.add(users, Task(_input_key(file), digest_input, (file, known), label=f"digest {file.path.name}"))
        graph.inputs[_input_key(file)] = file
    for i, one in tries.items():
        given = (sweep.plans[i].keys, one.contents, tuple(str(f.path) for f in one.digest))
        graph.add([i], Task(_keys(i), settle, (*given, *(Ref(_input_key(f)) for f in one.digest)), handle=True))
        graph.keys[_keys(i)] = i
    nodes = {node: users for node in sweep.names if (users := [i for i in sweep.users(node) if i in tries])}
    there = {node for node, users in nodes.items() if node.work is not None and node.name in tries[users[0]].there}
    for node in there:
        done = tries[nodes[node][0]].there[node.name]
        graph.add(nodes[node], Task(sweep.names[node], give, (done,), handle=True, label=node.name))
    at_once = {n: u for n, u in nodes.items() if n not in there and (n.work is not None or not _in_graph(n))}
    behind = lane(sweep, [n for n in nodes if n not in there], tries)
    for node, users in at_once.items():
        after = behind.get(node, ())
        graph.add(users, *_handles(sweep, node, users[0], models, after, fresh=tries[users[0]].fresh))
    chunks = _add_chunks(graph, sweep, tries)
    for node, users in at_once.items():
        if node.work is not None:
            name, plan = sweep.names[node], sweep.plans[users[0]]
            keys = [(users[0], chunk_key(plan, node.name, chunk)) for chunk in node.work.chunks]
            args = (Ref(f"{name}:work"), plan.inputs, *(chunks[k] for k in keys))
            graph.add(users, Task(name, finish, args, (f"{name}:begin",), label=f"{node.name} finish"))
    for node, users in nodes.items():
        if node not in at_once and node not in there:
            graph.add(users, *_result_tasks(sweep.names[node], node, sweep, users[0], models, behind.get(node, ())))
    return graph


def _input_key(file: InputFile) -> str:
    return f"input-{identity(file.identity)}"


def _keys(job: int) -> str:
    return f"keys of {job + 1}"


def _in_graph(node: Node) -> bool:
    return node.computes or node.planned_again


def _handles(
    sweep: Sweep, node: Node, job: int, models: ModelSlot | None, behind: tuple[str, ...], *, fresh: bool
) -> Iterator[Task]:
    """A stage's handle; of work, and its beginning."""
    name = sweep.names[node]
    if node.work is None:
        yield from _result_tasks(name, node, sweep, job, models, behind)
    else:
        yield from _result_tasks(f"{name}:work", node, sweep, job, models, behind)
        yield Task(f"{name}:begin", begin, (Ref(f"{name}:work"), fresh), label=f"{node.name} begin")


def _result_tasks(
    key: str, node: Node, sweep: Sweep, job: int, models: ModelSlot | None, behind: tuple[str, ...]
) -> Iterator[Task]:
    """The stage's result under `key`: as planned, or made in the graph when it computes, or builds on what does.

    Args:
        job: the first of the jobs at work that need it; it is made as that job would, and from what that job has.
    """
    if not _in_graph(node):
        yield Task(key, give, (node.result,), handle=True, label=node.name)
        return
    plan = sweep.plans[job]
    promised = node.result.store.specs if isinstance(node.result, Checkpoint) else None
    takes = (Ref(sweep.names[plan.nodes[source]]) for source in node.inputs.values())
    gives = node.gives if keeps(node) else None
    how = (node.name, node.stage, promised, plan.context, models, plan.inputs, tuple(node.inputs))
    args = (*how, gives, Ref(_keys(job)), *takes)
    yield Task(
        f"{key}:run", run_stage, args, behind=behind, resources=_resources([node]), handle=True, label=node.name,
        gang=optional(node.stage, StageHooks, "gang"),
    )  # fmt: skip
    yield Task(key, value_of, (Ref(f"{key}:run"),), handle=True, label=node.name)


def _add_chunks(graph: Graph, sweep: Sweep, tries: Mapping[int, Try]) -> dict[tuple[int, str], Ref]:
    """A task for every group; returns (job, chunk's key) → its result."""
    found: dict[tuple[int, str], Ref] = {}
    for group in sweep.groups:
        members = [m for m in group.members if m.job in tries and m.node.name not in tries[m.job].there]
        if not members:
            continue
        keys = [(m.job, chunk_key(sweep.plans[m.job], m.node.name, m.chunk)) for m in members]
        known = [tries[job].known.get(key) for job, key in keys]
        works = [Ref(f"{sweep.names[m.node]}:work") for m in members]
        begun = tuple(f"{sweep.names[m.node]}:begin" for m in members)
        resources = _resources([m.node for m in members])
        weight = sum(m.chunk.nbytes_in for m in members)
        if len(members) == 1:
            [member], key = members, keys[0][1]
            task = Task(
                key, do_chunk, (works[0], member.chunk, known[0]), begun, resources=resources,
                label=f"{member.node.name} {member.chunk}", weight=weight,
            )  # fmt: skip
            found[keys[0]] = Ref(key)
        else:
            labels = [f"{m.node.name} {m.chunk}" for m in members]
            retries = sweep.jobs[members[0].job].run.spine.dask.retries
            read = [[store.key for store in m.stores] for m in members]
            what = [(m.chunk, *more) for m, *more in zip(members, read, known, labels, strict=True)]
            key = f"together-{identity(keys)}"
            task = Task(
                key, do_chunks, (retries, what, *works, *map(Ref, begun)), tolerant=True, resources=resources,
                label=f"{labels[0]}, {len(members)} jobs", weight=weight,
            )  # fmt: skip
            found |= {k: Ref(key, n) for n, k in enumerate(keys)}
        graph.add([m.job for m in members], task)
        graph.chunks[key] = tuple(keys)
    return found


def _resources(nodes: Iterable[Node]) -> dict[str, float]:
    """What a task for these nodes holds while it runs."""
    found: dict[str, float] = {}
    for node in nodes:
        for tag, amount in optional(node.stage, StageHooks, "resources").items():
            found[tag] = max(amount, found.get(tag, 0))
    return found


def give(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Made:
    """What a stage's `run` gave in the graph, and what it measured.

    Attributes:
        key: the node's, with all that the run found out; None where there are no keys.
        found: where, when it was not made now.
    """

    value: Any
    record: dict[str, Any]
    key: Key | None = None
    found: str = ""


def settle(keys: Mapping[str, Key], contents: Mapping[str, str], paths: Sequence[str], *digests: str) -> dict[str, Key]:
    return settled(keys, {**contents, **dict(zip(paths, digests, strict=True))})


def keeps(node: Node) -> bool:
    """Whether what the stage gives is kept under its key: it is found by computing, and no handle, or one that the
    stage can open again."""
    handle = isinstance(node.result, Checkpoint) and optional(node.stage, StageHooks, "reopen") is None
    return node.computes and not handle and node.work is None


class _Unkept(Exception):
    """Takes a result that cannot be kept past those who would."""

    def __init__(self, made: Made):
        self.made = made


def run_stage(
    name: str, stage: Any, promised: Mapping[str, TensorSpec] | None, ctx: Context, models: ModelSlot | None,
    files: tuple[InputFile, ...], params: tuple[str, ...], gives: Any = None, keys: Mapping[str, Key] | None = None,
    *inputs: Any,
) -> Made:  # fmt: skip
    """Run a stage in the graph, on `inputs` for its parameters `params`, or give what it found before.

    Args:
        models: where models that it loads go; None: they are let go of when it is done.
        gives: the class of a result that is kept; None: it is not.
        keys: of all nodes, with the digests of the run's files.

    Raises:
        StageError: it gives other tensors than its plan promised.
        SourceError: one of `files` is no longer what was planned.
        StorageError: the result cannot be kept.
    """
    key, given = resolved(keys[name]) if keys else None, dict(zip(params, inputs, strict=True))
    if key is None:
        return _run(name, stage, promised, ctx, models, files, given)
    ctx = replace(ctx, key=key.id, takes=key.parts["takes"], recipe=key.recipe)
    results = ctx.results
    if gives is None or not isinstance(results, Results):
        return replace(_run(name, stage, promised, ctx, models, files, given), key=key)
    reopen = optional(stage, StageHooks, "reopen") if promised is not None else None
    fresh: list[Made] = []
    writes = tuple(optional(stage, StageHooks, "writes"))

    def make(folder: Path) -> Any:
        here = replace(ctx, folder=folder, unfinished=results.unfinished(key.id, key.parts)) if reopen else ctx
        made = _run(name, stage, promised, here, models, files, given)
        if reopen is None and not keepable(made.value, gives):
            raise _Unkept(made)
        for file in (ctx.run_dir / n for n in writes):
            if file.is_file():
                shutil.copyfile(file, folder / file.name)
        fresh.append(made)
        return {"value": None if reopen else packed(made.value), "record": made.record}

    try:
        said, folder = results.once(key.id, make, parts=key.parts, again=ctx.overwrite)
        value = unpacked(said["value"], gives) if reopen is None else timed(reopen(folder, *inputs), name, inputs)
        if fresh:
            return replace(fresh[0], key=key, value=value if reopen else fresh[0].value)
        if value is None:  # of an earlier version of that class, under this key
            said, folder = results.once(key.id, make, parts=key.parts, again=True)
            return replace(fresh[0], key=key)
    except _Unkept as unkept:
        return replace(unkept.made, key=key)
    for file in (folder / n for n in writes):
        if file.is_file():
            shutil.copyfile(file, ctx.run_dir / file.name)
    if tracing.active:
        tracing.instant(f"{name}: found, not computed again", "reused", folder=str(folder))
    text_stream.write(f"{name}: found in {folder}, not computed again\n")
    return Made(value, said["record"], key, str(folder))


def _run(
    name: str, stage: Any, promised: Mapping[str, TensorSpec] | None, ctx: Context, models: ModelSlot | None,
    files: tuple[InputFile, ...], given: Mapping[str, Any],
) -> Made:  # fmt: skip
    several = optional(stage, StageHooks, "gang")
    if several is not None and not member.inside():
        if models is not None:
            models.release()  # the processes need what it takes
        call = partial(_run, name, stage, promised, ctx, None, files, given)
        made: Made = gang.run(several, tracing.carried(call, member.title) if tracing.active else call)
        return made
    if member.inside():
        ctx = replace(ctx, results=member.Together(ctx.results or Results(ctx.run_dir / FOLDER)))
    with ExitStack() as own:
        here = replace(ctx, models=models or own.enter_context(ModelSlot()))
        start = time.perf_counter()
        measured = own.enter_context(meter.metered())
        own.enter_context(meter.stage(name))
        own.enter_context(_looked_at(ctx))
        value = timed(stage.run(here, **given), name, tuple(given.values()))
    unchanged(*files)
    if promised is not None and (given := dict(value.store.specs)) != promised:
        different = [t for t in {**promised, **given} if promised.get(t) != given.get(t)]
        first = f"{different[0]!r}: planned {promised.get(different[0])}, got {given.get(different[0])}"
        raise StageError(f"stage {name!r} gives other tensors than its `plan` promised; {first}")
    lasted = time.perf_counter() - start
    return Made(value, {**measured.record(), "of": name, "lasted": lasted, "process": [os.getpid(), peak.nbytes()]})


@contextmanager
def _looked_at(ctx: Context) -> Iterator[None]:
    """What this process takes is written while the body runs, where it is one of a gang."""
    with ExitStack() as looking:
        if member.inside():
            try:
                looking.enter_context(monitored([ctx.run_dir], ctx.monitor, member.rank()))
            except StorageError as why:  # of a worker that does not see the run's folder
                member.tell(f"monitor: what {member.title()} takes is not recorded: {why}\n")
        yield


def value_of(made: Made) -> Any:
    return made.value


def begin(work: Work[Any], fresh: bool) -> None:
    work.begin(fresh=fresh)


def do_chunk(work: Work[Any], chunk: Chunk, known: Mapping[str, Any] | None) -> dict[str, Any]:
    """Do the chunk unless what `known` says was written is still there."""
    if known is not None and work.digest(chunk) == known["digest"]:
        if tracing.active:
            tracing.instant(f"reused {chunk}", "reused")
        return {**known, "reused": True}
    start = time.perf_counter()
    try:
        with meter.metered() as measured, rooms.reused():
            digest = work.do(chunk)
    except Exception as why:
        if tracing.active:
            tracing.done(str(chunk), "chunk", start, **tracing.failure(why))
        raise
    seconds = time.perf_counter() - start
    if tracing.active:
        tracing.done(str(chunk), "chunk", start, seconds)
    return {"digest": digest, "seconds": seconds, "process": [os.getpid(), peak.nbytes()], **measured.record()}


def do_chunks(
    retries: int, what: Sequence[tuple[Chunk, Sequence[str], Mapping[str, Any] | None, str]], *works_and_begun: Any
) -> list[Any]:
    """Chunks of several works, which read what they share once; a failure of one is its own result only.

    Args:
        retries: as `dask.retries`, of each.
        what: chunk, keys of the shared stores that it reads, what is known of it, label.
        works_and_begun: their works, and then the results of their beginnings.
    """
    results: list[Any] = []
    works, begun = works_and_begun[: len(what)], works_and_begun[len(what) :]
    with sharing.keeping([chunk for chunk, *_ in what]):
        for n, (chunk, _, known, label) in enumerate(what):
            failed = next((r for r in (works[n], begun[n]) if isinstance(r, Failure)), None)
            if tracing.active:
                tracing.part(n)
            results.append(failed or attempt(do_chunk, retries, label, (works[n], chunk, known)))
            sharing.let_go([(chunk, keys) for chunk, keys, *_ in what[n + 1 :]])
    return results


def finish(work: Work[Any], inputs: tuple[InputFile, ...], *records: Mapping[str, Any]) -> Any:
    unchanged(*inputs)
    rooms.let_go()  # of the threads that did the chunks
    try:
        result = work.finish(records)
    finally:
        rooms.let_go()
    unchanged(*inputs)  # companions are copied in `finish`
    return result


def digest_input(file: InputFile, known: str | None) -> str:
    unchanged(file)
    if known is None and file.nbytes >= LARGE_NBYTES:
        text_stream.live(f"digesting {file.path.name}, {show_bytes(file.nbytes)}")
    digest = known or digest_file(file.path).xxh3_128
    unchanged(file)
    return digest

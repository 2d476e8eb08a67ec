"""A plan as tasks: each stage's handle, and for work its beginning, its chunks and its end.

Everything here runs where the tasks run, in worker processes too.
"""

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline import meter
from pipeline.digest import InputFile, digest_file, identity, unchanged
from pipeline.errors import StageError
from pipeline.planning.identity import Key, resolved, settled
from pipeline.planning.wiring import Node, Plan, chunk_key, timed
from pipeline.running import text_stream
from pipeline.running.graph import Ref, Task
from pipeline.running.results import Results, keepable, packed, unpacked
from pipeline.stage import Checkpoint, Chunk, Context, Exported, Footprint, Work
from pipeline.tensors.spec import TensorSpec

KEYS = ":keys"  # no stage is called so


def build_tasks(
    plan: Plan, known: Mapping[str, Any], *, fresh: bool, digest: Iterable[InputFile] = (),
    contents: Mapping[str, str] | None = None, there: Mapping[str, Exported] | None = None,
) -> list[Task]:  # fmt: skip
    """The plan as tasks, in order: each stage's handle, and for work its beginning, chunks and end.

    Args:
        known: records of an earlier try.
        fresh: discard what an earlier try left.
        digest: inputs whose digests are wanted.
        contents: path → digest, of inputs that are known.
        there: stages whose output is in its place already.
    """
    tasks: list[Task] = []
    for file in digest:
        key = f"input-{identity(file.identity)}"
        tasks.append(Task(key, digest_input, (file, known.get(key)), label=f"digest {file.path.name}"))
    paths = tuple(str(t.args[0].path) for t in tasks)
    given = (plan.keys, contents or {}, paths, *(Ref(t.key) for t in tasks))
    tasks.append(Task(KEYS, settle, given, handle=True, label=KEYS))
    lane: tuple[str, ...] = ()  # models are run one after another: there is one device, and one of them fits
    for node in plan.nodes.values():
        resources = dict(getattr(node.stage, "resources", {}))
        if there and node.name in there:
            tasks.append(Task(node.name, give, (there[node.name],), handle=True, label=node.name))
        elif node.work is None:
            tasks += _result_tasks(node.name, node, plan, resources, lane)
            lane = (node.name,) if isinstance(node.result, Footprint) else lane
        else:
            tasks += _work_tasks(node, plan, known, resources, fresh=fresh)
    return tasks


def _result_tasks(
    key: str, node: Node, plan: Plan, resources: Mapping[str, float], lane: tuple[str, ...] = ()
) -> Iterator[Task]:
    """The stage's result under `key`: as planned, or made in the graph when it computes, or builds on what does."""
    if not node.computes and not node.planned_again:
        yield Task(key, give, (node.result,), handle=True, label=key)
        return
    promised = node.result.store.specs if isinstance(node.result, Checkpoint) else None
    gives = node.gives if keeps(node) else None
    how = (node.name, node.stage, promised, plan.context, plan.inputs, gives, Ref(KEYS))
    args = (*how, *(Ref(s) for s in node.inputs.values()))
    after = lane if isinstance(node.result, Footprint) else ()
    yield Task(f"{key}:run", run_stage, args, after, resources, handle=True, label=node.name)
    yield Task(key, value_of, (Ref(f"{key}:run"),), handle=True, label=key)


def _work_tasks(
    node: Node, plan: Plan, known: Mapping[str, Any], resources: Mapping[str, float], *, fresh: bool
) -> Iterator[Task]:
    name, work, inputs = node.name, node.work, plan.inputs
    assert work is not None
    handle, begun = f"{name}:work", f"{name}:begin"
    yield from _result_tasks(handle, node, plan, resources)
    yield Task(begun, begin, (Ref(handle), fresh), label=f"{name} begin")
    keys = []
    for chunk in work.chunks:
        key = chunk_key(plan, name, chunk)
        keys.append(key)
        yield Task(
            key, do_chunk, (Ref(handle), chunk, known.get(key)), (begun,), resources,
            label=f"{name} {chunk}", weight=chunk.nbytes_in,
        )  # fmt: skip
    yield Task(name, finish, (Ref(handle), inputs, *map(Ref, keys)), (begun,), label=f"{name} finish")


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
    """Whether what the stage gives is kept under its key: it is found by computing, and no handle."""
    return node.computes and not isinstance(node.result, Checkpoint) and node.work is None


class _Unkept(Exception):
    """Takes a result that cannot be kept past those who would."""

    def __init__(self, made: Made):
        self.made = made


def run_stage(
    name: str, stage: Any, promised: Mapping[str, TensorSpec] | None, ctx: Context, files: tuple[InputFile, ...],
    gives: Any = None, keys: Mapping[str, Key] | None = None, *inputs: Any,
) -> Made:  # fmt: skip
    """Run a stage in the graph, or give what it found before.

    Args:
        gives: the class of a result that is kept; None: it is not.
        keys: of all nodes, with the digests of the run's files.

    Raises:
        StageError: it gives other tensors than its plan promised.
        SourceError: one of `files` is no longer what was planned.
        StorageError: the result cannot be kept.
    """
    key = resolved(keys[name]) if keys else None
    if key is None:
        return _run(name, stage, promised, ctx, files, inputs)
    ctx = replace(ctx, key=key.id, takes=key.parts["takes"], recipe=key.recipe)
    results = ctx.results
    if gives is None or not isinstance(results, Results):
        return replace(_run(name, stage, promised, ctx, files, inputs), key=key)
    fresh: list[Made] = []
    writes = tuple(getattr(stage, "writes", ()))

    def make(folder: Path) -> Any:
        made = _run(name, stage, promised, ctx, files, inputs)
        if not keepable(made.value, gives):
            raise _Unkept(made)
        for file in (ctx.run_dir / n for n in writes):
            if file.is_file():
                shutil.copyfile(file, folder / file.name)
        fresh.append(made)
        return {"value": packed(made.value), "record": made.record}

    try:
        said, folder = results.once(key.id, make, parts=key.parts, again=ctx.overwrite)
        if fresh:
            return replace(fresh[0], key=key)
        if (value := unpacked(said["value"], gives)) is None:  # of an earlier version of that class, under this key
            said, folder = results.once(key.id, make, parts=key.parts, again=True)
            return replace(fresh[0], key=key)
    except _Unkept as unkept:
        return replace(unkept.made, key=key)
    for file in (folder / n for n in writes):
        if file.is_file():
            shutil.copyfile(file, ctx.run_dir / file.name)
    text_stream.write(f"{name}: found in {folder}, not computed again\n")
    return Made(value, said["record"], key, str(folder))


def _run(
    name: str, stage: Any, promised: Mapping[str, TensorSpec] | None, ctx: Context, files: tuple[InputFile, ...],
    inputs: tuple[Any, ...],
) -> Made:  # fmt: skip
    with meter.metered() as measured, meter.stage(name):
        value = timed(stage.run(ctx, *inputs), name, inputs)
    unchanged(*files)
    if promised is not None and (given := dict(value.store.specs)) != promised:
        different = [t for t in {**promised, **given} if promised.get(t) != given.get(t)]
        first = f"{different[0]!r}: planned {promised.get(different[0])}, got {given.get(different[0])}"
        raise StageError(f"stage {name!r} gives other tensors than its `plan` promised; {first}")
    return Made(value, measured.record())


def value_of(made: Made) -> Any:
    return made.value


def begin(work: Work[Any], fresh: bool) -> None:
    work.begin(fresh=fresh)


def do_chunk(work: Work[Any], chunk: Chunk, known: Mapping[str, Any] | None) -> dict[str, Any]:
    """Do the chunk unless what `known` says was written is still there."""
    if known is not None and work.digest(chunk) == known["digest"]:
        return {**known, "reused": True}
    start = time.perf_counter()
    with meter.metered() as measured:
        digest = work.do(chunk)
    return {"digest": digest, "seconds": time.perf_counter() - start, **measured.record()}


def finish(work: Work[Any], inputs: tuple[InputFile, ...], *records: Mapping[str, Any]) -> Any:
    unchanged(*inputs)
    result = work.finish(records)
    unchanged(*inputs)  # companions are copied in `finish`
    return result


def digest_input(file: InputFile, known: str | None) -> str:
    unchanged(file)
    digest = known or digest_file(file.path).xxh3_128
    unchanged(file)
    return digest

"""A plan as tasks: each stage's handle, and for work its beginning, its chunks and its end.

Everything here runs where the tasks run, in worker processes too.
"""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline import meter
from pipeline.digest import InputFile, digest_file, identity, unchanged
from pipeline.errors import StageError
from pipeline.hooks import optional
from pipeline.planning.wiring import Node, Plan, chunk_key, timed
from pipeline.running import peak
from pipeline.running.graph import Ref, Task
from pipeline.stage import Checkpoint, Chunk, Context, StageHooks, Work
from pipeline.tensors.spec import TensorSpec


def build_tasks(
    plan: Plan, run_id: str, known: Mapping[str, Any], *, fresh: bool, digest_inputs: bool = False
) -> list[Task]:
    """The plan as tasks, in order: each stage's handle, and for work its beginning, chunks and end."""
    tasks: list[Task] = []
    if digest_inputs:
        for file in (f for f in plan.inputs if f.xxh3_128 is None):
            key = f"input-{identity([run_id, str(file.path)])}"
            tasks.append(Task(key, digest_input, (file, known.get(key)), label=f"digest {file.path.name}"))
    lane: tuple[str, ...] = ()  # what computes runs one after another: there is one device, and one model fits
    for node in plan.nodes.values():
        resources = dict(optional(node.stage, StageHooks, "resources"))
        if node.work is None:
            tasks += _result_tasks(node.name, node, plan, resources, lane)
        else:
            tasks += _work_tasks(node, plan, run_id, known, resources, lane, fresh=fresh)
        lane = (node.name,) if node.computes else lane
    return tasks


def _result_tasks(
    key: str, node: Node, plan: Plan, resources: Mapping[str, float], lane: tuple[str, ...]
) -> Iterator[Task]:
    """The stage's result under `key`: as planned, or made in the graph when it computes, or builds on what does."""
    if not node.computes and not node.planned_again:
        yield Task(key, give, (node.result,), handle=True, label=key)
        return
    promised = node.result.store.specs if isinstance(node.result, Checkpoint) else None
    args = (node.name, node.stage, promised, plan.context, plan.inputs, *(Ref(s) for s in node.inputs.values()))
    after = lane if node.computes else ()
    yield Task(f"{key}:run", run_stage, args, after, resources, handle=True, label=node.name)
    yield Task(key, value_of, (Ref(f"{key}:run"),), handle=True, label=key)


def _work_tasks(
    node: Node, plan: Plan, run_id: str, known: Mapping[str, Any], resources: Mapping[str, float],
    lane: tuple[str, ...], *, fresh: bool,
) -> Iterator[Task]:  # fmt: skip
    name, work, inputs = node.name, node.work, plan.inputs
    assert work is not None
    handle, begun = f"{name}:work", f"{name}:begin"
    yield from _result_tasks(handle, node, plan, resources, lane)
    yield Task(begun, begin, (Ref(handle), fresh), label=f"{name} begin")
    keys = []
    for chunk in work.chunks:
        key = chunk_key(run_id, name, chunk)
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
    """What a stage's `run` gave in the graph, and what it measured."""

    value: Any
    record: dict[str, Any]


def run_stage(
    name: str, stage: Any, promised: Mapping[str, TensorSpec] | None, ctx: Context, files: tuple[InputFile, ...],
    *inputs: Any,
) -> Made:  # fmt: skip
    """Run a stage in the graph.

    Raises:
        StageError: it gives other tensors than its plan promised.
        SourceError: one of `files` is no longer what was planned.
    """
    with meter.metered() as measured, meter.stage(name):
        value = timed(stage.run(ctx, *inputs), name, inputs)
    unchanged(*files)
    if promised is not None and (given := dict(value.store.specs)) != promised:
        different = [t for t in {**promised, **given} if promised.get(t) != given.get(t)]
        first = f"{different[0]!r}: planned {promised.get(different[0])}, got {given.get(different[0])}"
        raise StageError(f"stage {name!r} gives other tensors than its `plan` promised; {first}")
    return Made(value, {**measured.record(), "process": [os.getpid(), peak.nbytes()]})


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
    seconds = time.perf_counter() - start
    return {"digest": digest, "seconds": seconds, "process": [os.getpid(), peak.nbytes()], **measured.record()}


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

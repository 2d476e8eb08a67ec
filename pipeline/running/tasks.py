"""A plan as tasks: each stage's handle, and for work its beginning, its chunks and its end.

Everything here runs where the tasks run, in worker processes too.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from pipeline import meter
from pipeline.digest import InputFile, digest_file, identity, unchanged
from pipeline.errors import StageError
from pipeline.model_slot import ModelSlot
from pipeline.planning.wiring import Node, Plan, chunk_key, timed
from pipeline.running.graph import Ref, Task
from pipeline.stage import Checkpoint, Chunk, Context, Footprint, Work
from pipeline.tensors.spec import TensorSpec


def build_tasks(
    plan: Plan, run_id: str, known: Mapping[str, Any], *, fresh: bool, digest_inputs: bool = False,
    models: ModelSlot | None = None,
) -> list[Task]:  # fmt: skip
    """The plan as tasks, in order: each stage's handle, and for work its beginning, chunks and end.

    Args:
        models: holds models from stage to stage, in this process; None: every task lets go of what it loaded.
    """
    tasks: list[Task] = []
    if digest_inputs:
        for file in (f for f in plan.inputs if f.xxh3_128 is None):
            key = f"input-{identity([run_id, str(file.path)])}"
            tasks.append(Task(key, digest_input, (file, known.get(key)), label=f"digest {file.path.name}"))
    lane: tuple[str, ...] = ()  # models are run one after another: there is one device, and one of them fits
    for node in plan.nodes.values():
        resources = dict(getattr(node.stage, "resources", {}))
        if node.work is None:
            tasks += _result_tasks(node.name, node, plan, resources, lane, models)
            lane = (node.name,) if isinstance(node.result, Footprint) else lane
        else:
            tasks += _work_tasks(node, plan, run_id, known, resources, models, fresh=fresh)
    return tasks


def _result_tasks(
    key: str, node: Node, plan: Plan, resources: Mapping[str, float], lane: tuple[str, ...], models: ModelSlot | None
) -> Iterator[Task]:
    """The stage's result under `key`: as planned, or made in the graph when it computes, or builds on what does."""
    if not node.computes and not node.planned_again:
        yield Task(key, give, (node.result,), handle=True, label=key)
        return
    promised = node.result.store.specs if isinstance(node.result, Checkpoint) else None
    sources = [Ref(s) for s in node.inputs.values()]
    args = (node.name, node.stage, promised, plan.context, models, plan.inputs, tuple(node.inputs), *sources)
    after = lane if isinstance(node.result, Footprint) else ()
    yield Task(f"{key}:run", run_stage, args, after, resources, handle=True, label=node.name)
    yield Task(key, value_of, (Ref(f"{key}:run"),), handle=True, label=key)


def _work_tasks(
    node: Node, plan: Plan, run_id: str, known: Mapping[str, Any], resources: Mapping[str, float],
    models: ModelSlot | None, *, fresh: bool,
) -> Iterator[Task]:  # fmt: skip
    name, work, inputs = node.name, node.work, plan.inputs
    assert work is not None
    handle, begun = f"{name}:work", f"{name}:begin"
    yield from _result_tasks(handle, node, plan, resources, (), models)
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
    name: str, stage: Any, promised: Mapping[str, TensorSpec] | None, ctx: Context, models: ModelSlot | None,
    files: tuple[InputFile, ...], params: tuple[str, ...], *inputs: Any,
) -> Made:  # fmt: skip
    """Run a stage in the graph, on `inputs` for its parameters `params`. Models that it loads go into `models`; without
    it they are let go of when it is done.

    Raises:
        StageError: it gives other tensors than its plan promised.
        SourceError: one of `files` is no longer what was planned.
    """
    with ExitStack() as own:
        here = replace(ctx, models=models or own.enter_context(ModelSlot()))
        measured = own.enter_context(meter.metered())
        own.enter_context(meter.stage(name))
        value = timed(stage.run(here, **dict(zip(params, inputs, strict=True))), name, inputs)
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

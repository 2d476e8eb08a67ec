"""Jobs planned as one: equal nodes once, chunks cut alike and grouped, memory of the whole."""

import shutil
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from pipeline.api import compose_run
from pipeline.planning.memory import plan_jobs, plan_run
from pipeline.planning.rates import Rates
from pipeline.planning.sharing import SharedStore
from pipeline.planning.sweep import Job, group
from pipeline.stage import Checkpoint

HERE = Path("/nonexistent")
TINY = Path(__file__).parents[3] / "plugins/models/gpt_oss/tiny"
# Blocks of 32, of a row, of 128 × 128, of rows that a GGUF file packs by 256: no two of them cut alike by themselves.
QUANTS = ("mxfp4", "int8", "fp8_e4m3", "q8_0")
DOUBLE = ("quant.scale=dynamic8", "quant.second=dynamic8", "quant.block_elems=32")
EXPORTS = ("plain", "numpy", "auto")


composed = cache(compose_run)


def job(*overrides: str) -> Job:
    """One job; what is typed for Dask is set in a config that is composed once."""
    typed = [o.removeprefix("dask.").partition("=") for o in overrides if o.startswith("dask.")]
    dask = {name: int(value) if name == "workers" else value for name, _, value in typed}
    run = composed(("+model=gpt_oss", *(o for o in overrides if not o.startswith("dask."))))
    run = replace(run, spine=replace(run.spine, dask=replace(run.spine.dask, **dask)))
    return Job(run, HERE / "-".join(overrides), overrides, " ".join(overrides))


def jobs(*more: str) -> list[Job]:
    return [job("flow=convert", f"quant={q}", f"export={e}", *more) for q, e in product(QUANTS, EXPORTS)]


@pytest.mark.parametrize("chunk", ["64MiB", "256KiB"])
@pytest.mark.brief("256KiB")
def test_twelve_conversions_read_the_source_once(chunk: str) -> None:
    sweep = plan_jobs(jobs(f"dask.chunk={chunk}"))
    assert sweep.sound == list(range(12))
    assert Counter(node.name for node in sweep.names) == {"load": 1, "decode": 1, "quantize": 4, "export": 12}
    source = sum(sweep.plans[0].nodes["load"].result.stored.values())
    assert source <= sum(g.nbytes_in for g in sweep.groups) <= 1.05 * source
    # The longest task is what a sweep on many cores waits for: no group is longer than one chunk of each job.
    assert all(len(g.members) == 12 for g in sweep.groups)


def test_a_task_takes_what_it_keeps_and_a_chunk() -> None:
    sweep = plan_jobs(jobs("dask.chunk=256KiB"))
    assert sweep.memory is not None
    assert sweep.memory.task == max(g.peak_nbytes for g in sweep.groups)
    for one in sweep.groups:
        chunk = max(m.chunk.peak_nbytes for m in one.members)
        assert (
            chunk < one.peak_nbytes <= chunk + 2 * one.nbytes_in
        )  # a box of the source, and what one method makes of it
    assert all(plan.memory is sweep.memory for plan in sweep.plans)


def test_what_does_not_fit_one_task_is_taken_apart() -> None:
    sweep = plan_jobs(jobs("dask.chunk=256KiB"))
    largest = max(m.chunk.peak_nbytes for g in sweep.groups for m in g.members)
    apart = group(sweep, largest)
    assert max(g.peak_nbytes for g in apart) == largest
    members = Counter((m.job, str(m.chunk)) for g in apart for m in g.members)
    assert members == Counter((m.job, str(m.chunk)) for g in sweep.groups for m in g.members)
    assert sum(g.nbytes_in for g in apart) > sum(g.nbytes_in for g in sweep.groups)


def test_a_work_that_takes_whole_tensors_does_not_make_the_others_do_so() -> None:
    """NF4 with double quantization codes its scales over all of a tensor."""
    small = [job("flow=convert", f"quant={q}", "dask.chunk=256KiB") for q in ("mxfp4", "fp8_e4m3")]
    whole = job("flow=convert", "quant=nf4", "export=orbax", *DOUBLE, "dask.chunk=256KiB")
    sweep = plan_jobs([*small, whole])
    assert all(plan.problems == [] for plan in sweep.plans)
    pieces = [max(c.nbytes_in for c in plan.chunks) for plan in sweep.plans]
    assert pieces[0] == pieces[1] < pieces[2]
    assert sum(g.nbytes_in for g in sweep.groups) <= 1.05 * sum(c.nbytes_in for c in sweep.plans[0].chunks)


def test_the_time_of_a_sweep_has_what_is_shared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rates, "seconds", lambda self, kind, nbytes: nbytes / 1000)
    mine = [job("flow=convert", f"quant={q}", "dask.workers=1") for q in ("mxfp4", "int8")]
    alone = [plan_jobs([one]) for one in mine]
    sweep, whole = plan_jobs(mine), plan_jobs(mine).time
    assert whole is not None
    single = [one.time for one in alone if one.time is not None]
    assert [plan.time for plan in sweep.plans] == single  # what each would take by itself
    shared = ("load", "decode")
    for name, count in Counter(node.name for node in sweep.names).items():
        assert count == (1 if name in shared else 2)
    for i, one in enumerate(single):
        for name in ("load", "decode", "quantize", "export"):
            node = "1." if name in shared else f"{i + 1}."
            assert whole.of(node + name) == one.of(name)
            assert one.of(name) is not None
    once = sum(single[0].of(name) or 0.0 for name in shared)
    assert whole.seconds == pytest.approx(sum(one.seconds or 0.0 for one in single) - once)
    assert alone[0].time is alone[0].plans[0].time


def test_jobs_that_have_nothing_in_common_are_left_alone(tmp_path: Path) -> None:
    source = shutil.copytree(TINY, tmp_path / "other")
    content = bytearray((file := next(source.glob("*.safetensors"))).read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    sweep = plan_jobs([job("flow=convert", "quant=mxfp4", f"model.source={s}") for s in (TINY, source)])
    assert not {*sweep.plans[0].nodes.values()} & {*sweep.plans[1].nodes.values()}
    assert [len(g.members) for g in sweep.groups] == [1, 1]


def test_a_single_run_is_a_sweep_of_one() -> None:
    sweep = plan_jobs([job("flow=convert", "quant=mxfp4", "dask.chunk=256KiB")])
    [plan] = sweep.plans
    assert [g.members[0].chunk for g in sweep.groups] == list(plan.chunks)
    assert all(len(g.members) == 1 for g in sweep.groups)
    assert not any(isinstance(getattr(n.result, "store", None), SharedStore) for n in plan.nodes.values())
    assert [*sweep.names.values()] == ["load", "decode", "quantize", "export"]


def test_what_quantize_gives_is_shared_by_exports() -> None:
    sweep = plan_jobs([job("flow=convert", "quant=mxfp4", f"export={e}") for e in ("hf", "plain")])
    assert sweep.plans[0].nodes["quantize"] is sweep.plans[1].nodes["quantize"]
    assert sweep.plans[0].nodes["export"] is not sweep.plans[1].nodes["export"]
    # Decode has one reader, which is asked once.
    nodes = {name: n.result for name, n in sweep.plans[0].nodes.items() if isinstance(n.result, Checkpoint)}
    shared = [name for name, checkpoint in nodes.items() if isinstance(checkpoint.store, SharedStore)]
    assert shared == ["quantize"]


def test_a_job_with_problems_is_planned_without() -> None:
    bad = job("flow=convert", "quant=int8", "export=gguf")
    sweep = plan_jobs([job("flow=convert", "quant=mxfp4"), bad, job("flow=convert", "quant=q8_0")])
    assert sweep.sound == [0, 2]
    assert "cannot hold this" in str(sweep.plans[1].problems[0])
    assert {m.job for g in sweep.groups for m in g.members} == {0, 2}


def test_what_fits_alone_and_not_together_says_so() -> None:
    few = jobs("dask.memory=100MiB", "dask.workers=1")
    alone = plan_run(few[0].run, few[0].run_dir)
    assert alone.problems == []
    together = plan_jobs(few)
    assert together.memory is not None
    wanted = together.memory.peak
    assert wanted > 100 << 20
    for plan in together.plans:
        [problem] = plan.problems
        assert "100MiB is too little for 12 jobs together" in problem.message
    enough = plan_jobs([replace_memory(j, f"{-(-wanted // (1 << 20))}MiB") for j in few])
    assert all(plan.problems == [] for plan in enough.plans)


def replace_memory(one: Job, said: str) -> Job:
    spine = replace(one.run.spine, dask=replace(one.run.spine.dask, memory=said))
    return replace(one, run=replace(one.run, spine=spine))


def test_one_that_does_not_fit_alone_leaves_room_for_the_others() -> None:
    how = ("flow=convert", "dask.workers=1", "dask.chunk=256KiB", "export=orbax")
    large, least = job(*how, "quant=nf4", *DOUBLE), job(*how, "quant=mxfp4")
    needed = plan_run(large.run, large.run_dir).memory
    assert needed is not None
    sweep = plan_jobs([replace_memory(one, f"{needed.peak // 1024 - 1}KiB") for one in (least, large)])
    assert sweep.plans[0].problems == []
    [problem] = sweep.plans[1].problems
    assert "is too little: " in problem.message


def test_exports_of_several_trainings_are_no_one_task(tmp_path: Path) -> None:
    """Each training waits for what the job before it computes, which takes that job's export."""
    (text := tmp_path / "text.txt").write_text("all work and no play " * 200)
    more = ("flow=finetune", f"data.files=[{text}]", "train.steps=2", "data.length=16")
    sweep = plan_jobs([job(*more, f"seed={seed}") for seed in (0, 1)])
    assert sweep.sound == [0, 1], [plan.problems for plan in sweep.plans]
    assert {m.job for g in sweep.groups for m in g.members} == {0, 1}
    assert [len({m.job for m in g.members}) for g in sweep.groups] == [1] * len(sweep.groups)

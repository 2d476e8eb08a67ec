"""Stages that compute run one after another, and never before what they need: of other jobs too."""

import json
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from pipeline.api import compose_run
from pipeline.planning.memory import plan_jobs
from pipeline.planning.sweep import Job
from pipeline.running.graph import Ref, Task
from pipeline.running.tasks import Try, build_tasks
from tests.cases import toy_llama

TINY = Path("plugins/models/gpt_oss/tiny")


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    folder = tmp_path / "llama"
    folder.mkdir()
    save_file(toy_llama.weights(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(toy_llama.CONFIG))
    (folder / "tokenizer.json").write_bytes((Path(__file__).parents[3] / TINY / "tokenizer.json").read_bytes())
    return folder


def before(task: Task) -> list[str]:
    return [*(a.key for a in task.args if isinstance(a, Ref)), *task.after, *task.behind]


@pytest.mark.parametrize("calibrates", [("imatrix", "gptq"), ("none", "gptq", "imatrix", "awq"), ("gptq", "imatrix")])
def test_what_jobs_do_together_waits_for_what_both_need(llama: Path, calibrates: tuple[str, ...]) -> None:
    """Chunks of two jobs are done together, of which the second computes statistics first; and the first generates with
    what it has exported."""
    jobs = []
    for c in calibrates:
        given = [f"model.source={llama}", "flow=full", "quant=int4", "quant.block_elems=8", f"calibrate={c}"]
        jobs.append(Job(compose_run([*given, f"paths.run={llama / c}"]), llama / c))
    sweep = plan_jobs(jobs)
    assert [plan.problems for plan in sweep.plans] == [[]] * len(jobs)
    tasks = build_tasks(sweep, {i: Try({}, True, (), {}, {}) for i in range(len(jobs))}).tasks
    assert any(task.key.startswith("together-") for task in tasks)
    left = {task.key: {*before(task)} for task in tasks}
    while ready := [key for key, some in left.items() if not some & left.keys()]:
        for key in ready:
            del left[key]
    assert not left, "a cycle"

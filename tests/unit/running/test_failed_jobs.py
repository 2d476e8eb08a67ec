"""Why jobs of a sweep failed is said once, when the first of them does."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.errors import PlanError, Problem, StageError
from pipeline.events import Events
from pipeline.planning.sweep import Asked, Job
from pipeline.running import sweep

PACKED = "packed already, as int4; leave out quant=: a.weight"


def test_a_reason_that_jobs_share_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    why = [
        PlanError([Problem("2 of 3 tensors", PACKED)]), PlanError([Problem("2 of 2 tensors", PACKED)]),
        PlanError([Problem("export", "cannot hold this; did you mean gguf?"), Problem("dask", "too small")]),
    ]  # fmt: skip

    def execute(
        jobs: Sequence[Job], events: Events, settled: Callable[[int, Any], None], parents: Any, trace: Any
    ) -> list[Exception]:
        for n, error in enumerate(why):
            settled(n, error)
        return [*why]

    said: list[str] = []
    run: Any = SimpleNamespace(spine=SimpleNamespace(dask=None, progress=False, trace=False), nodes={}, tracker=None)
    asked = Asked([Job(run, tmp_path / name, (), name) for name in "abc"], [], tmp_path, "")
    monkeypatch.setattr(sweep, "execute_jobs", execute)
    monkeypatch.setattr(sweep.kernels, "prepare", lambda runs, say: None)
    sweep.ran(asked, Events(say=said.append))
    assert said == [
        "[1/3] a: failed", f"error: 2 of 3 tensors: {PACKED}", "[2/3] b: failed as a did: 2 of 2 tensors",
        "[3/3] c: failed", "error: 2 problems", "  - export: cannot hold this; did you mean gguf?",
        "  - dask: too small",
    ]  # fmt: skip
    with pytest.raises(StageError) as failed:
        sweep.executed(asked)
    assert str(failed.value) == "3 of 3 jobs failed\n  a, b: packed already, as int4\n  c: export: cannot hold this"

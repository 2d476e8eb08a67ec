"""`flow=bench_parts`: a step's ops are those that a plan knows, each is measured, and rows say what they come to."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pipeline
from pipeline.bench import against, parts, turns
from pipeline.bench.turns import Turns
from pipeline.errors import WeightmillError
from pipeline.records import schemas
from plugins.engine import parts as measured_parts
from tests.cases import two_layers
from tests.cases.guests import guest

MODULE = """
from dataclasses import dataclass


@dataclass(frozen=True)
class Fixed:
    def of(self, threads):
        return {"read": 1e10, "multiply_add": 1e11}
"""
SMALL = (
    "+model=gpt_oss", "quant=mxfp4", "flow=bench_parts", "bench.prompts=[16]", "bench.contexts=[5]", "bench.rounds=1",
    "bench.seconds=0.001", "bench.threads=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bench")
    fixed = "stages.bench_parts.limits._target_=plugins.acme_parts.Fixed"
    with guest(folder, {"plugins.acme_parts": MODULE}):
        typed = [*SMALL, f"model.source={two_layers.folder()}", fixed, f"paths.outputs={folder}/outputs"]
        report = pipeline.run(typed, config_dir=folder, progress=False)
    assert report.exit_code == 0
    return schemas.read("benchmark", Path(report.run) / against.NAME)


def test_a_step_is_its_ops(record: dict[str, Any]) -> None:
    rows = record["rows"]
    assert {row["engine"] for row in rows} == {"a token after 5", "a prompt of 16"}
    token = {row["quant"]: row for row in rows if row["engine"] == "a token after 5"}
    calls: dict[str, int] = {}
    for row in token.values():
        calls[row["op"]] = calls.get(row["op"], 0) + row["calls"]
    layers = two_layers.LAYERS
    assert calls == {
        parts.WHOLE: 1, "embed": 1, "rms_norm": 2 * layers + 1, "matmul": 3 * layers + 1, "rope": 2 * layers,
        "attention": layers, "softmax": layers, "moe": layers, "sample": 1, parts.BETWEEN: 0,
    }  # fmt: skip
    assert len(token) == len({*token}), "rows are compared by their names"
    assert sum("window 64" in name for name in token) == 1
    experts = token["moe 8 experts, 160 → 224 → 160 e2m1/32/e8m0"]
    one = (224 * 2 * 160 + 160 * 224) * 17 // 32  # bytes of an expert: 4 bits a value, and 8 for 32 of them
    assert experts["nbytes"] == layers * 2 * one, "of two experts that are chosen"
    assert token[parts.WHOLE]["nbytes"] == sum(row["nbytes"] for row in token.values()) / 2
    assert 0 < record["own_seconds"] < record["seconds"] / 2


def test_calls_of_a_part_wait_for_each_other() -> None:
    """Each sees what the one before made of it: 0 times that is NaN, or nothing. Any of several results counts."""
    x, runtime = jnp.ones(4), SimpleNamespace(device=jax.devices("cpu")[0])
    group = measured_parts.Group("rms_norm", "4", False, [(((x + i,),), {}) for i in range(3)])

    def kernel(x: Any) -> list[Any]:
        return [jnp.zeros(2), jnp.where(jnp.isnan(x), 7, jnp.nan)]

    run, _ = measured_parts._programs(runtime, kernel, group)  # type: ignore[arg-type]
    assert [float(made[1][0]) for made in run()] == pytest.approx([np.nan, 7, np.nan], nan_ok=True)


def test_products_of_one_array_stay_products_of_one() -> None:
    """Kernels divide its preparation among them, which a step has once too."""
    x, others = jnp.ones(4), [jnp.ones((2, 4)), jnp.ones((3, 4))]
    seen: list[bool] = []

    def together(*calls: Any) -> list[Any]:
        seen.append(calls[0][0] is calls[1][0])
        return [w @ x for x, w, _ in calls]

    calls = [(tuple((x, w, None) for w in others), {}) for _ in range(2)]
    group = measured_parts.Group("matmul", "4 → 2 + 3", True, calls)
    runtime = SimpleNamespace(device=jax.devices("cpu")[0])
    run, _ = measured_parts._programs(runtime, SimpleNamespace(together=together), group)  # type: ignore[arg-type]
    assert seen == [True, True]
    assert [[made.shape[0] for made in of] for of in run()] == [[2, 3], [2, 3]]


def test_what_is_left_is_between_them() -> None:
    part = {"op": "matmul", "label": "2 → 3", "calls": 4, "nbytes": 1000, "s": 2e-6}
    rounds = [
        {"steps": {"a token": {"whole": 5e-6, "parts": [part]}}, "versions": {}},
        {"steps": {"a token": {"whole": 7e-6, "parts": [{**part, "s": 4e-6}]}}, "versions": {}},
    ]
    whole, matmul, between = parts.rows(rounds, read=1e9, others=0.0)
    assert [row["metrics"]["time"]["value"] for row in (whole, matmul, between)] == pytest.approx([6, 3, 3])
    assert (matmul["share"], matmul["of_read"]) == (pytest.approx(0.5), pytest.approx(1 / 3))
    assert between["metrics"]["time"]["spread"] == pytest.approx(0)
    [table] = parts.tables([whole, matmul, between], (), None)
    assert [row[0] for row in table.rows] == ["whole step", "matmul 2 → 3", "between the ops"]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("bench.prompts=[17]", "bench.prompts=17: one program reads 16, 32"), ("bench.contexts=[0]", "1 or more"),
        ("bench.seconds=0", "more than 0"), ("kernels=reference", "no part of compiled programs"),
        ("mesh=tensor", "on one device"),
    ],
)  # fmt: skip
def test_what_is_typed_wrong_is_said_before_anything_runs(
    tmp_path: Path, override: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Turns, "rounds", lambda *_: pytest.fail("it ran"))
    monkeypatch.setattr(turns, "done", lambda *_: pytest.fail("it ran"))
    with pytest.raises(WeightmillError, match=said):
        pipeline.run([*SMALL, f"paths.outputs={tmp_path}", override], progress=False)

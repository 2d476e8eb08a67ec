"""Trainings from the command line: whom they learn of, and parts of one's own."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cases.tokenizers import TINY
from tests.cli.run import done, manifest, pipeline

TEXT = (
    "data.files=[text.txt]",
    "data.separator=",
    "data.length=16",
    "data.held_out=0.3",
    "train.steps=4",
    "train.batch=4",
)

SIGN = """
from collections.abc import Mapping
from dataclasses import dataclass, field

from plugins.train.schedules import Schedule


@dataclass(frozen=True)
class Sign:
    rate: float = 0.05
    clip: float | None = None
    schedule: Schedule = field(default_factory=Schedule)
    groups: Mapping[str, float] = field(default_factory=dict)

    def build(self, parameters):
        import optax

        return optax.sign_sgd(1.0)
"""
ABSOLUTE = """
from dataclasses import dataclass


@dataclass(frozen=True)
class Absolute:
    def sums(self, model, batch, key, teacher=None):
        import jax.numpy as jnp

        off = jnp.abs(model(batch["inputs"])[:, 0] - batch["targets"])
        return (off * batch["weights"]).sum(), batch["weights"].sum(), {}
"""
LINE = """
from dataclasses import dataclass

import numpy as np

from pipeline.training import DataPlan, Splits

SPECS = {"inputs": ((1,), "float32"), "targets": ((), "float32"), "weights": ((), "float32")}


@dataclass(frozen=True)
class Numbers:
    count: int
    slope: float
    specs = SPECS

    def __len__(self):
        return self.count

    def batch(self, at):
        x = (at / self.count).astype(np.float32)
        return {"inputs": x[:, None], "targets": np.float32(self.slope) * x, "weights": np.ones(len(at), np.float32)}


@dataclass(frozen=True)
class Line:
    slope: float = 1.0
    count: int = 64

    def inputs(self):
        return ()

    def check(self, checkpoint):
        return ()

    def plan(self, checkpoint):
        return DataPlan(self.count, SPECS, held_out=8)

    def open(self, results, tokenizer):
        return Splits(Numbers(self.count, self.slope), Numbers(8, self.slope), {"slope": self.slope})
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(
        "\n\n".join(f"The people of {n} states have elected a sailor. " for n in range(60))
    )


def rows(run: Path, kind: str) -> list[dict[str, Any]]:
    found = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [r for r in found if r["kind"] == kind]


def cells(run: Path, stage: str = "train") -> dict[str, Any]:
    """What the tables of a stage's result say, by the first column."""
    tables = manifest(run)["results"][stage]["tables"]
    return {row[0]: row[1]["value"] if isinstance(row[1], dict) else row[1] for t in tables for row in t["rows"]}


def test_another_checkpoint_teaches(tmp_path: Path) -> None:
    """The embedded one teaches a layer of fresh weights; Muon by its name."""
    args = ("+model=gpt_oss", "flow=distill", "stages=[init,teacher,train,export]", f"teacher={TINY}", *TEXT)
    config = "++stages.init.config={num_hidden_layers: 1, layer_types: [full_attention]}"
    run = tmp_path / "run"
    found = done(*args, config, "train/optimizer=muon", "train.steps=8", f"paths.run={run}", cwd=tmp_path)
    first, last = rows(run, "held_out")
    assert last["divergence"] < 0.95 * first["divergence"]
    assert {"divergence", "agreement", "gradient_norm"} <= rows(run, "train")[0].keys()
    planned = {row["what"]: (row["planned"], row["measured"]) for row in found["predicted"]}
    assert planned["device"][0] == pytest.approx(planned["device"][1], abs=64)  # the teacher's weights too
    said = cells(run)
    assert said["examples"] + said["examples held out"] >= 60 * 9 // 16
    assert Path(said["weights"]).is_dir()
    assert "perplexity" not in said["held-out loss after"]  # a divergence has none


def test_parts_of_ones_own_are_a_dataclass_and_a_file_each(tmp_path: Path) -> None:
    for group, name, cls, code in (
        ("train/optimizer", "sign", "Sign", SIGN), ("train/objective", "absolute", "Absolute", ABSOLUTE),
        ("data", "line", "Line", LINE),
    ):  # fmt: skip
        module = tmp_path / "mine" / "plugins" / f"{name}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(code)
        option = tmp_path / "mine" / group / f"{name}.yaml"
        option.parent.mkdir(parents=True, exist_ok=True)
        option.write_text(f"_target_: plugins.{name}.{cls}\n")
    mine = ("--config-dir", "mine", "+model=mlp", "stages=[init,train,export]", "train/optimizer=sign")
    mine += ("train/objective=absolute", "data=line", "+data.slope=3", "train.steps=40", "train.batch=16")
    mine += ("++stages.init.config={inputs: 1, hidden_sizes: [8], outputs: 1}",)
    said = pipeline(*mine, "paths.run=run", cwd=tmp_path)
    assert said.code == 0, said.err
    first, last = rows(tmp_path / "run", "held_out")
    assert last["loss"] < 0.5 * first["loss"]
    assert cells(tmp_path / "run")["slope"] == 3
    wrong = pipeline("plan", *mine, "train/optimizer=sing", cwd=tmp_path)
    assert wrong.code == 2
    assert "sign" in wrong.err
    assert "muon" in wrong.err  # beside ours

"""What is not written, and which kernel did not do what was asked of it, is said: in the plan, at the end, and kept."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline as weightmill
from pipeline.api import _composed
from pipeline.ops import Kernel
from pipeline.planning.memory import plan_run
from pipeline.planning.wiring import make_plan
from pipeline.reporting import console
from pipeline.reporting.manifest import left_out
from pipeline.reporting.tables import MOST_SHOWN, ignored_table, tables
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.binding import Binding
from pipeline.tensors.spec import TensorSpec
from plugins.formats.npy.container import Npy
from plugins.formats.safetensors.plain import Plain
from stages.export import Export
from tests.cases import toy_gpt_oss
from tests.cases.memory_store import MemoryStore

REASON = "rotary frequencies follow from config.json"


def shown(found: Any, capsys: pytest.CaptureFixture[str]) -> str:
    console.out(*found)
    return capsys.readouterr().out


def test_what_a_source_holds_and_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toy = toy_gpt_oss.make()
    names = [f"model.layers.{n}.self_attn.rotary_emb.inv_freq" for n in range(toy_gpt_oss.LAYERS)]
    toy.leaves.update(dict.fromkeys(names, np.ones(12, np.float32)))
    source = toy_gpt_oss.write(tmp_path / "source", toy)
    args = ["+model=gpt_oss", "flow=convert", f"model.source={source}", f"paths.run={tmp_path / 'run'}"]
    with _composed(args, None) as (config, _):
        plan = plan_run(config, tmp_path / "run")
    expected = [{"stage": "load", "tensor": n, "reason": REASON} for n in names]
    assert left_out(plan) == expected
    said = shown(console.plan_tables(plan), capsys)
    assert f"load │ model.layers.*.self_attn.rotary_emb.inv_freq │ ×3 │ {REASON}" in said
    report = weightmill.run(args)
    assert report.ignored == expected == json.loads((tmp_path / "run" / "manifest.json").read_text())["ignored"]
    assert f"│ ×3 │ {REASON}" in shown(tables(report), capsys)


def test_many_are_counted_and_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"stage": "load", "tensor": f"unknown_{n}", "reason": "no reason"} for n in range(MOST_SHOWN + 1988)]
    said = shown(ignored_table(rows), capsys)
    assert "and 1,988 more" in said
    assert len(said.splitlines()) < MOST_SHOWN + 8
    assert shown(ignored_table([]), capsys) == ""


@pytest.mark.parametrize(
    ("kernels", "declined"),
    [
        ("numpy", {("numpy", "reference")}),
        ("xla", {("xla", "reference"), ("numpy", "reference")}),
    ],
)
def test_a_tensor_without_elements_is_quantized_by_the_definition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kernels: str, declined: set[tuple[str, str]]
) -> None:
    from safetensors.numpy import save_file

    (tmp_path / "source").mkdir()
    save_file(
        {"a.weight": np.ones((4, 64), np.float32), "b.weight": np.ones((0, 64), np.float32)},
        tmp_path / "source" / "model.safetensors",
    )
    report = weightmill.run([
        "+model=llama", "flow=convert", "quant=mxfp4", "export=orbax", f"kernels={kernels}",
        f"model.source={tmp_path / 'source'}", "model.rules=[{match: '*', to: quant}]",
        f"paths.run={tmp_path / 'run'}",
    ])  # fmt: skip
    assert ["quantize", "reference"] in report.backends
    assert ["quantize", kernels] in report.backends
    assert {(d["backend"], d["ran"]) for d in report.declined} == declined
    assert {d["op"] for d in report.declined} == {"quantize"}
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["declined"] == report.declined
    said = shown(tables(report), capsys)
    assert "Kernels that declined" in said
    assert "this one has none" in said


@dataclass(frozen=True)
class WithoutBuffers(Plain):
    """A dialect that has no place for some tensors and says so."""

    def encode(self, tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        kept = {n: s for n, s in tensors.items() if not n.endswith("buffer")}
        return replace(super().encode(kept, config), ignored=dict.fromkeys(tensors.keys() - kept, "is no weight"))


def test_what_an_export_has_no_place_for(tmp_path: Path) -> None:
    tensors = {"a.weight": np.ones((2, 3), np.float32), "a.buffer": np.ones(3, np.float32)}
    stages = {
        "source": Given(Checkpoint(MemoryStore(tensors), {"model_type": "x"})),
        "export": Export(WithoutBuffers(), Npy(), Kernel("dequantize", ("numpy",)), Kernel("cast", ("numpy",))),
    }
    plan = make_plan(stages, Context(tmp_path / "run"))
    assert not plan.problems
    assert left_out(plan) == [{"stage": "export", "tensor": "a.buffer", "reason": "is no weight"}]
    [work] = plan.works.values()
    work.begin(fresh=True)
    work.finish([{"digest": work.do(chunk)} for chunk in work.chunks])
    assert {*Npy().open(tmp_path / "run" / "model").specs} == {"a.weight"}


@dataclass(frozen=True)
class Given:
    checkpoint: Checkpoint

    def run(self, ctx: Context) -> Checkpoint:
        return self.checkpoint

"""Adapters beside packed weights, and training for a packed export, over meshes: what one device finds."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from pipeline.adapters import MergedStore
from pipeline.errors import PlanError
from pipeline.mesh import Mesh
from pipeline.records.points import METRICS
from pipeline.rules import Rule
from pipeline.stage import Context
from pipeline.training import DataPlan, Splits
from plugins.quant.blockwise import Blockwise
from plugins.train.lora import Lora
from plugins.train.objectives import CausalLM, Distillation
from plugins.train.optimizers import SGD
from plugins.train.options import Looking, Saving
from plugins.train.packing import Packing
from plugins.train.qat import Qat
from plugins.train.trainer import Trainer
from tests.cases import model_runs
from tests.cases.quantized import quant_method
from tests.cases.toy_rows import Rows
from tests.sharding import models, processes, toys

NF4, MXFP4, NVFP4 = (quant_method(name) for name in ("nf4", "mxfp4", "nvfp4"))
RULES = Rule(match="*self_attn*_proj.weight"), Rule("blocks", match="*.experts.*_proj")
PACKING = Packing(NF4, RULES, methods={"blocks": MXFP4})
QLORA = Lora(rank=3, alpha=12.0, packing=PACKING, ranks={"*o_proj*": 2})
QAT = Qat(packing=replace(PACKING, method=MXFP4))
BYTES = Blockwise("int8", 0, "f32", scale_rule="amax")
HOW = {"qlora": QLORA, "qat": QAT, "qat, activations": replace(QAT, activations=BYTES)}
MESHES: dict[str, Mesh] = {
    "data": toys.mesh("data", data=4), "expert": toys.mesh("expert", expert=4), "fsdp_tensor": toys.mesh("fsdp_tensor"),
}  # fmt: skip
PROMPTS = ("5 17 3", "40 2 2 8 90")


@dataclass(frozen=True)
class Found:
    """What a training gave: rows of metrics, how much its parameters have changed, by name, and from what."""

    rows: list[Mapping[str, Any]]
    changed: Mapping[str, np.ndarray]
    before: Mapping[str, np.ndarray]


def trainer(transform: Any, mesh: Mesh | None, **options: Any) -> Trainer:
    """Two updates by plain gradients."""
    engine = processes.engine(mesh)
    prompts = PROMPTS if isinstance(transform, Lora) else ()  # texts are of a model, however it was trained
    look = Looking(prompts=prompts, tokens=3, temperature=0.5, groups=("*layers*",))
    found = Trainer(
        engine, CausalLM(), SGD(rate=0.3, clip=None), steps=2, batch=8, micro=4, transform=transform, dtype="fp32",
        save=Saving(seconds=None), look=look,
    )  # fmt: skip
    return replace(found, **options)


@cache
def trained(kind: str, transform: str, name: str | None) -> Found:
    """Training for rounded activations learns of the model as it was, as `train=qat` does."""
    objective = Distillation() if transform == "qat, activations" else CausalLM()
    how = trainer(HOW[transform], None if name is None else MESHES[name], objective=objective)
    given = models.checkpoint(kind, layers=1)
    with TemporaryDirectory() as folder, model_runs.quick_compilation():
        data = Splits(Rows(16), Rows(6, seed=3))
        found = how.train(Context(Path(folder)), given, data, processes.Numbers(), 0, None)
        rows = [json.loads(line) for line in (Path(folder) / METRICS).read_text().splitlines()]
        if isinstance(store := found.store, MergedStore):
            layers = {f"{layer.names[0]} {n}": getattr(layer, n) for layer in store.layers for n in ("a", "b")}
            return Found(rows, layers, {})
        before = {n: given.store.read(n).astype("f4") for n in store.specs}
        return Found(rows, {n: store.read(n) - w for n, w in before.items()}, before)


@pytest.mark.parametrize(
    ("transform", "name"),
    [("qlora", "expert"), ("qlora", "fsdp_tensor"), ("qat", "fsdp_tensor"), ("qat, activations", "expert")],
)
@pytest.mark.brief("qat-fsdp_tensor")  # of adapters test_processes.py says it
def test_a_mesh_finds_what_one_device_does(transform: str, name: str) -> None:
    """Losses, of updates and of what is held out; norms; texts; and what was added up of gradients."""
    one, several = trained("gpt_oss", transform, None), trained("gpt_oss", transform, name)
    assert [r["kind"] for r in several.rows] == [r["kind"] for r in one.rows]
    for found, wanted in zip(several.rows, one.rows, strict=True):
        for what in wanted.keys() - {"seconds", "tokens_per_s"}:
            if isinstance(wanted[what], float):
                assert found[what] == pytest.approx(wanted[what], rel=1e-5), what
            else:
                assert found[what] == wanted[what], what
    assert several.changed.keys() == one.changed.keys()
    for name, change in one.changed.items():
        size = np.abs(change).max()
        assert size > 0, name
        step = 2 * np.spacing(
            np.abs(one.before.get(name, change)).max()
        )  # a change is a difference of numbers so large
        np.testing.assert_allclose(several.changed[name], change, rtol=0, atol=1e-5 * size + step, err_msg=name)


def test_packed_weights_lie_as_they_do_to_be_run() -> None:
    """And a plan counts what a device has of them, and of what is trained."""
    given, mesh = models.checkpoint("gpt_oss", layers=1), MESHES["expert"]
    how = trainer(QLORA, mesh)
    packed = QLORA.base(given)
    assert how.on_devices(given).layouts() == how.engine.placement(packed).layouts
    specs, takes = how.plan(given, DataPlan(16, Rows(16).specs), None)
    whole = trainer(QLORA, None).plan(given, DataPlan(16, Rows(16).specs), None)[1]
    assert whole.device_nbytes / 4 < takes.device_nbytes < 0.5 * whole.device_nbytes
    assert specs.keys() == set(given.store.specs)


def test_what_shares_a_scale_is_not_divided() -> None:
    given = models.checkpoint("llama", layers=1)

    def problems(mesh: Mesh, how: Qat) -> list[str]:
        with pytest.raises(PlanError) as why:
            trainer(how, mesh).plan(given, DataPlan(16, Rows(16).specs), None)
        return [str(p) for p in why.value.problems]

    dense = Packing(MXFP4, RULES[:1])
    rows = Qat(packing=dense, activations=BYTES)
    [*_, said] = problems(MESHES["fsdp_tensor"], rows)
    assert "its input is divided over tensor" in said
    assert "scales are of a row; mesh.stored divides weights" in said
    whole = Qat(packing=Packing(NVFP4, (Rule(match="*mlp.down_proj.weight"),)))
    assert any("mlp" in p for p in problems(toys.mesh("tensor", tensor=2), whole))

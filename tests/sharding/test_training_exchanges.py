"""What devices send each other for an update is what the plan says, by kind and byte, and nothing else."""

from collections import Counter
from typing import Any

import pytest

from pipeline.mesh import Mesh
from pipeline.tensors.spec import TensorSpec
from pipeline.training import DataPlan
from plugins.engine.load import parameters as params_of
from plugins.models.family import family_of
from plugins.train.exchanges import Update
from plugins.train.objectives import CausalLM
from plugins.train.optimizers import AdamW
from plugins.train.step import make_step
from tests.cases import model_runs, trained
from tests.cases.toy_rows import Rows
from tests.sharding import models, toys
from tests.sharding.test_training_transforms import QLORA, trainer

MESHES: dict[str, Mesh] = {
    "data": toys.mesh("data", data=4), "fsdp": toys.mesh("fsdp", fsdp=4), "tensor": toys.mesh("tensor", tensor=2),
    "expert": toys.mesh("expert", expert=4), "fsdp_tensor": toys.mesh("fsdp_tensor"),
}  # fmt: skip
ROWS, LENGTH = 4, 16
ONE = {"num_hidden_layers": 1}
LAYERS: dict[str, Any] = {"gpt_oss": {**ONE, "layer_types": ["sliding_attention"]}}


def compiled(kind: str, mesh: Mesh, *, recompute: bool) -> Any:
    """The program of an update."""
    model, spread = trained.model(kind, mesh=mesh, **LAYERS.get(kind, ONE)), trained.spread(mesh)
    step = make_step(model, CausalLM(), AdamW(), steps=9, spread=spread, recompute=recompute)
    parameters = trained.parameters(kind, **LAYERS.get(kind, ONE))
    state, batches = step.init(parameters), step.placed(trained.batches(1, ROWS, LENGTH))
    with model_runs.quick_compilation():
        return step.jitted.lower(state, batches, step.shared(trained.key()), {}, {}).compile()


def planned(kind: str, mesh: Mesh) -> dict[str, int]:
    """Kind of collective → bytes."""
    config = {**trained.CONFIGS[kind], **LAYERS.get(kind, ONE)}
    parameters = family_of(config, model_runs.engine().families).parameters(config)
    model = trained.model(kind, mesh=mesh, **LAYERS.get(kind, ONE))
    specs = {n: TensorSpec(p.shape[1:] if p.stack else p.shape, "F32") for p in parameters for n in p.names}
    layouts = {p.names[0]: p.layout for p in params_of(model)}
    rows = ROWS // mesh.ways(mesh.over("batch")) * LENGTH
    chosen = config.get("num_experts_per_tok", 0)
    update = Update(mesh, parameters, layouts, specs, None, rows, 1, 4, chosen)
    found: Counter[str] = Counter()
    for e in update.step.exchanges:
        found[models.NAMES[e.kind]] += e.nbytes
    return found


@pytest.mark.parametrize(
    ("kind", "name", "recompute"),
    [
        ("llama", "data", False), ("llama", "fsdp", True), ("qwen3_moe", "tensor", False), ("gpt_oss", "expert", False),
        ("gpt_oss", "fsdp_tensor", False),
    ],
)  # fmt: skip
@pytest.mark.brief("llama-fsdp-True", "gpt_oss-expert-False")
def test_an_update_sends_what_is_planned(kind: str, name: str, recompute: bool) -> None:
    program = compiled(kind, MESHES[name], recompute=recompute)
    one_by_one = str(sorted((c.kind, c.shape, c.ways) for c in models.collectives(program) if c.shape))
    assert models.sent(program) == planned(kind, MESHES[name]), one_by_one


def test_a_plan_says_it_of_all_micro_batches() -> None:
    """Gradients of what every device has whole are added up once for them."""
    given, data = models.checkpoint("gpt_oss", layers=1), DataPlan(16, Rows(16).specs)

    def sent(mesh: Mesh, **options: Any) -> Counter[str]:
        _, takes = trainer(None, mesh, **options).plan(given, data, None)
        [step] = takes.steps
        assert step.tokens == 8 * 12 // mesh.ways(mesh.over("batch"))
        assert len(takes.host_reads) == 1
        return Counter({(e.place, e.kind): e.nbytes for e in step.exchanges})

    one, two = (sent(MESHES["fsdp"], micro=micro) for micro in (8, 4))
    assert two["gather", "all_gather"] == 2 * one["gather", "all_gather"] > 0
    assert two["gradients", "psum_scatter"] == 2 * one["gradients", "psum_scatter"] > 0
    assert sent(MESHES["data"], micro=8) == sent(MESHES["data"], micro=4)
    [step] = trainer(QLORA, MESHES["fsdp"]).plan(given, data, None)[1].steps
    of = {(e.place, e.kind): e.nbytes for e in step.exchanges}
    assert 0 < of["gather", "all_gather"] < two["gather", "all_gather"] / 2  # packed
    assert ("gradients", "psum_scatter") not in of

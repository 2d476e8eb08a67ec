"""What models give, send and hold on meshes of up to eight devices: `python -m tests.sharding.eight CASES` prints it of
some of them, as JSON, with XLA_FLAGS=--xla_force_host_platform_device_count=8."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from pipeline.mesh import Mesh
from pipeline.stage import Checkpoint
from tests.cases import model_runs
from tests.sharding import models, toys
from tests.sharding.models import CONFIGS, IDS, LENGTH, POSITIONS, TENSOR

EMBEDDED = Path(model_runs.__file__).parents[2] / "plugins/models/gpt_oss/tiny"  # of 8 experts
MESHES = {
    "cube": Mesh(
        {"data": 2, "fsdp": 2, "tensor": 2}, {"batch": ("data", "fsdp"), **TENSOR},
        {"fsdp": ("experts", "vocab", "mlp", "heads", "kv_heads", "embed")}, 1.0,
    ),
    "expert": toys.mesh("expert", expert=8),
    "expert4": toys.mesh("expert", expert=4),
    "data": toys.mesh("data", data=4),
    "fsdp": toys.mesh("fsdp", fsdp=4),
    "expert_tensor_data": Mesh(
        {"expert": 2, "tensor": 2, "data": 2}, {"batch": "data", "experts": "expert", **TENSOR}, {}, 1.0
    ),
}  # fmt: skip
CASES = [
    *((kind, "cube") for kind in CONFIGS), ("qwen3_moe", "expert_tensor_data"),
    *(("embedded", name) for name in MESHES if name != "cube"),
]  # fmt: skip


def checkpoint(kind: str) -> Checkpoint:
    return model_runs.checkpoint(EMBEDDED) if kind == "embedded" else models.checkpoint(kind)


def found(kind: str, name: str, alone: Any) -> dict[str, Any]:
    """Of one model on one mesh."""
    model = models.model(kind, MESHES[name], of=checkpoint(kind))
    apart = models.apart(model.runtime.forward(IDS, POSITIONS), alone)
    [program] = models.programs(model.runtime, "forward")
    held = dict.fromkeys(jax.devices()[: model.runtime.spread.mesh.size], 0)
    for leaf in model.runtime._leaves:
        for shard in leaf.addressable_shards:
            held[shard.device] += shard.data.nbytes
    return {
        "apart": apart,
        "sent": models.sent(program),
        "planned": models.planned(model, len(IDS) // model.runtime.ways * LENGTH),
        "live": list(held.values()),
        "weights": model.facts["planned_nbytes"],
    }


def main(cases: Sequence[tuple[str, str]]) -> None:
    kinds = dict.fromkeys(kind for kind, _ in cases)
    alone = {kind: models.model(kind, of=checkpoint(kind)).runtime.forward(IDS, POSITIONS) for kind in kinds}
    print(json.dumps([found(kind, name, alone[kind]) for kind, name in cases]))


if __name__ == "__main__":
    with model_runs.quick_compilation():
        main(json.loads(sys.argv[1]))

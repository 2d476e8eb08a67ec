"""Models on meshes give what they give on one device, and send what the plan says and nothing else."""

from collections.abc import Iterator

import jax
import numpy as np
import pytest

from pipeline.engine import Usage
from tests.cases import model_runs
from tests.sharding import models
from tests.sharding.models import IDS, LENGTH, MESHES, POSITIONS, apart

# Every family on three axes at once is in eight.py, and every mesh with a dense model and one of experts here.
EVERY = [(kind, name) for kind in ("llama", "gpt_oss") for name in MESHES if models.fitting(kind, name)]
PACKED = [("llama", "fsdp_tensor", 0), ("gpt_oss", "expert_tensor", 1), ("qwen3_moe", "fsdp", 2)]


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with model_runs.quick_compilation():
        yield


@pytest.mark.parametrize(("kind", "name"), EVERY)
@pytest.mark.brief("llama-fsdp_tensor", "gpt_oss-data_expert", "gpt_oss-expert_tensor", "llama-two_axes")
def test_logits_are_those_of_one_device(kind: str, name: str) -> None:
    mesh = MESHES[name]
    model = models.model(kind, mesh)
    runtime = model.runtime
    assert apart(runtime.forward(IDS, POSITIONS), models.logits(kind)) < 1e-5
    [program] = models.programs(runtime, "forward")
    tokens = len(IDS) // runtime.ways * LENGTH
    assert models.sent(program) == models.planned(model, tokens)
    facts = model.facts
    assert facts["device_nbytes"] == facts["planned_nbytes"]


@pytest.mark.parametrize(("kind", "name", "turn"), PACKED)
@pytest.mark.brief("gpt_oss-expert_tensor-1", "llama-fsdp_tensor-0")
def test_packed_weights_stay_packed(kind: str, name: str, turn: int) -> None:
    """Every option of conf/quant; what is sent is codes and scales as they are, and that only where FSDP gathers."""
    of = models.packed(kind, turn)
    expected = models.model(kind, of=of).runtime.forward(IDS, POSITIONS)
    model = models.model(kind, MESHES[name], of=of)
    assert apart(model.runtime.forward(IDS, POSITIONS), expected) < 1e-5
    [program] = models.programs(model.runtime, "forward")
    tokens = len(IDS) // model.runtime.ways * LENGTH
    assert models.sent(program) == models.planned(model, tokens)


@pytest.mark.parametrize("name", ["data", "fsdp", "tensor", "expert", "fsdp_tensor"])
@pytest.mark.brief("fsdp_tensor", "expert")
def test_temporaries_are_about_what_the_plan_says(name: str) -> None:
    """As XLA compiles for itself: weights gathered for use, activations, scores, logits."""
    jax.config.update("jax_disable_most_optimizations", False)
    of = models.checkpoint("gpt_oss", layers=1)
    model = models.model("gpt_oss", MESHES[name], of=of)
    rows, length = 4, 128
    tokens = np.zeros((rows, length), np.int32)
    model.runtime.forward(tokens, tokens + np.arange(length, dtype=np.int32))
    [program] = models.programs(model.runtime, "forward")
    planned = model._engine.plan(of, text=False, usage=Usage(rows, length)).temporary_nbytes
    assert 1 / 1.5 < planned / program.memory_analysis().temp_size_in_bytes < 1.5


def test_what_is_gathered_is_let_go_of() -> None:
    """Beside the weights a device never has more of them for use than a few matrices, of 8 layers."""
    jax.config.update("jax_disable_most_optimizations", False)
    model = models.model("llama", MESHES["fsdp"], of=models.checkpoint("llama", layers=8))
    model.runtime.forward(IDS[:2, :1], POSITIONS[:2, :1])
    [program] = models.programs(model.runtime, "forward")
    matrix = 4 * 64 * 256  # the largest, as it is decoded to be multiplied
    assert program.memory_analysis().temp_size_in_bytes < 2 * matrix + 20_000  # and activations
    assert 2 * matrix + 20_000 < model.facts["device_nbytes"] / 2

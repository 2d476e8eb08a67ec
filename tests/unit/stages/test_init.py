"""Fresh weights: each tensor a function of the seed and its name, whichever part of it is read."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.api import compose_run
from pipeline.errors import PlanError
from pipeline.planning.memory import plan_run
from pipeline.stage import Checkpoint
from pipeline.tensors.spec import TensorSpec
from stages.init import BLOCK, FreshStore

TINY = Path(__file__).parents[3] / "plugins" / "models" / "gpt_oss" / "tiny"
TEXT = TINY.parents[2] / "texts" / "sotu_eval.txt"


def store(shape: tuple[int, ...], seed: int = 0, dtype: str = "F32") -> FreshStore:
    return FreshStore({"w": TensorSpec(shape, dtype), "norm.weight": TensorSpec(shape, dtype)}, seed, 0.02,
                      {"*norm.weight": 1.0})  # fmt: skip


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 5), (3, 70, 700)])
def test_a_part_is_that_part_of_the_whole(shape: tuple[int, ...]) -> None:
    whole = store(shape).read("w")
    assert whole.shape == shape
    sides = [sorted({(0, n), (0, 1), (n // 2, n), (n - 1, n), (n // 3, n // 3 + 1)}) for n in shape]
    for box in itertools.product(*sides):
        index = tuple(slice(*side) for side in box)
        np.testing.assert_array_equal(store(shape).read("w", index), whole[index], str(box))


def test_values_depend_on_seed_and_name_and_nothing_else() -> None:
    a = store((4, 5)).read("w")
    np.testing.assert_array_equal(a, store((4, 5)).read("w"))
    assert not np.array_equal(a, store((4, 5), seed=1).read("w"))
    other = FreshStore({"v": TensorSpec((4, 5), "F32")}, 0, 0.02, {})
    assert not np.array_equal(a, other.read("v"))


def test_they_are_normal_of_the_range_that_config_says() -> None:
    values = store((3, BLOCK)).read("w").ravel() / 0.02
    n = len(values)
    assert abs(values.mean()) < 4 / n**0.5
    assert abs(values.std() - 1) < 4 / (2 * n) ** 0.5
    blocks = values.reshape(3, -1)
    assert abs(np.corrcoef(blocks)[0, 1]) < 4 / BLOCK**0.5
    np.testing.assert_array_equal(store((2, 3)).read("norm.weight"), np.ones((2, 3), np.float32))


def planned(tmp_path: Path, *overrides: str) -> Any:
    return plan_run(compose_run([*overrides, "stages=[init]", f"paths.outputs={tmp_path}"]), tmp_path / "run")


def test_the_embedded_config_with_fresh_weights(tmp_path: Path) -> None:
    plan = planned(tmp_path, "+model=gpt_oss", "seed=3")
    assert not plan.problems
    made = plan.nodes["init"].result
    assert isinstance(made, Checkpoint)
    index = json.loads((TINY / "model.safetensors.index.json").read_text())["weight_map"]
    assert {*made.store.specs} == {n for n in index if not n.endswith(("_blocks", "_scales"))} | {
        n for n in made.store.specs if n.endswith(("gate_up_proj", "down_proj"))
    }
    assert {"tokenizer.json", "tokenizer_config.json"} <= {*made.files}
    assert not any(f.path.suffix == ".safetensors" for f in made.inputs)  # they stay where they are
    for name, want in (("model.norm.weight", 1.0), ("model.layers.0.self_attn.q_proj.bias", 0.0)):
        np.testing.assert_array_equal(made.store.store.read(name), want)
    assert plan.keys["init"].parts["seed"] == 3


@pytest.mark.parametrize(("how", "said"), [
    (["quant=int8", "train=qat"], "warning: rounds weights that are random still (init); train=full comes before that"),
    (["train=lora"], "warning: freezes weights"), (["train=full", "data.length=64"], ""),
    (["data.length=65", "+stages.init.config={max_position_embeddings: 64}"], "warning: rows of 65 tokens, and con"),
    (["data.length=64", "+stages.init.config={max_position_embeddings: 64}"], ""),
])  # fmt: skip
def test_what_a_training_is_not_for_is_said(how: list[str], said: str, tmp_path: Path) -> None:
    asked = ["+model=gpt_oss", "stages=[init,train]", f"data.files=[{TEXT}]", *how]
    plan = plan_run(compose_run([*asked, f"paths.outputs={tmp_path}"]), tmp_path / "run")
    assert not plan.problems
    assert plan.nodes["train"].takes.reads.startswith(said)
    assert bool(plan.nodes["train"].takes.reads) == bool(said)


def test_keys_of_config_can_be_otherwise(tmp_path: Path) -> None:
    plan = planned(tmp_path, "+model=gpt_oss", "+stages.init.config={num_hidden_layers: 1, layer_types: null}")
    assert not plan.problems
    assert max(n.split(".")[2] for n in plan.nodes["init"].result.store.specs if ".layers." in n) == "0"


def test_what_config_json_lacks_is_a_problem(tmp_path: Path) -> None:
    plan = planned(tmp_path, "+model=gpt_oss", "+stages.init.config={hidden_size: null, vocab_size: 7.5}")
    said = " ".join(str(p) for p in plan.problems)
    assert "hidden_size" in said
    assert "vocab_size" in said
    with pytest.raises(PlanError):
        raise PlanError(plan.problems)

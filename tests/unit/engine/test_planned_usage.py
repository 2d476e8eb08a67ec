"""What a plan says that running takes is what running takes, or a bound on it."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.engine import Usage, Windows, generating, scoring
from pipeline.errors import PlanError
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import Index
from pipeline.testing.memory import MemoryStore, checkpoint
from plugins.engine.options import Sampling
from plugins.engine.sizes import SMALLEST_CACHE, power_of_two
from plugins.models.common.cache import Cache, LayerShape
from plugins.models.device import cache_nbytes
from tests.cases import model_runs

LINEAR = {"rope_type": "linear", "rope_theta": 1e4}
TINY = Path(model_runs.__file__).parents[2] / "plugins/models/gpt_oss/tiny"


@pytest.fixture(scope="module")
def tiny() -> Any:
    return model_runs.checkpoint(TINY)


@pytest.mark.parametrize("cache", ["bf16", "f32", "fp8", "int8"])
@pytest.mark.parametrize(("prompts", "tokens"), [(1, 8), (3, 300)])
def test_the_kv_cache_is_planned_to_the_byte(cache: Any, prompts: int, tokens: int, tiny: Any) -> None:
    """Of a model whose layers alternate between rings and full ones, where the length is known."""
    engine = replace(model_runs.engine(), cache=cache)
    model = engine.load(tiny)
    plan = engine.plan(tiny, usage=Usage(prompts, 20 + tokens, generates=True, tokens=tokens))
    assert plan.cache_nbytes == model.runtime.cache_nbytes({1: 1, 3: 4}[prompts], 20 + tokens)
    assert plan.device_nbytes == model.runtime.device_nbytes + plan.cache_nbytes
    before = engine.plan(tiny)
    assert before.cache_nbytes == 0
    slots = {1: 1, 3: 4}[prompts] * power_of_two(20 + tokens, SMALLEST_CACHE)
    copied = 2 * slots * 4 * tiny.config["num_key_value_heads"] * tiny.config["head_dim"]  # of a layer, to attend to it
    assert plan.host_nbytes >= before.host_nbytes + plan.cache_nbytes + copied


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"num_key_value_heads": 4}, "config.json num_key_value_heads"),
        ({"rms_norm_eps": -1e-5}, "config.json rms_norm_eps: -1e-05 must be positive"),
        ({"rope_parameters": LINEAR | {"factor": 0}}, "config.json: rope type 'linear' needs the number 'factor'"),
    ],
)
@pytest.mark.parametrize("text", [True, False])
def test_what_a_family_has_against_config_json_is_planned(config: Any, said: str, text: bool, tiny: Any) -> None:
    with pytest.raises(PlanError) as caught:
        model_runs.engine().plan(replace(tiny, config={**tiny.config, **config}), text=text)
    assert str(caught.value).startswith(said)
    assert str(caught.value).endswith("; flow=convert needs no model to run")
    assert caught.value.exit_code == 4


@dataclass(frozen=True)
class Outline:
    specs: dict[str, TensorSpec]
    metadata: dict[str, Any] = field(default_factory=dict)

    def read(self, name: str, index: Index = ()) -> Any:
        raise AssertionError("a plan reads nothing")


def test_every_layer_takes_memory_to_compile(tiny: Any) -> None:
    """Deep toys with next to no weights took more than was planned when only packed matrices counted."""
    engine, first = model_runs.engine(), {n: s for n, s in tiny.store.specs.items() if ".layers.0." in n}
    deeper = {n.replace(".layers.0.", f".layers.{i}."): s for i in range(4, 100) for n, s in first.items()}
    config = {**tiny.config, "num_hidden_layers": 100, "layer_types": None}
    before = engine.plan(tiny)
    after = engine.plan(replace(tiny, store=Outline({**tiny.store.specs, **deeper}), config=config))
    weights = after.device_nbytes - before.device_nbytes
    measured = (1475 - 675) << 20  # MiB of 96 layers and of 24, in which the weights were 50 MiB
    assert after.host_nbytes - before.host_nbytes - weights >= (measured - (50 << 20)) * 96 / 72


def test_windows_that_are_not_said_layer_by_layer_are_a_bound() -> None:
    specs = checkpoint({f"model.layers.{i}.self_attn.k_proj.weight": np.zeros((6, 8), "f4") for i in (0, 1)})
    shapes = [LayerShape(3, 2, 64), LayerShape(3, 2)]
    config = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"], "num_key_value_heads": 3}
    assert isinstance(specs.store, MemoryStore)
    for dtype in ("bf16", "int8"):
        exact = Cache.nbytes(shapes, 2, SMALLEST_CACHE, dtype)  # type: ignore[arg-type]
        assert cache_nbytes(specs.store.specs, config, 2, SMALLEST_CACHE, dtype) == exact
        assert cache_nbytes(specs.store.specs, {**config, "layer_types": None}, 2, SMALLEST_CACHE, dtype) > exact
        assert (
            cache_nbytes(specs.store.specs, {**config, "use_sliding_window": False}, 2, SMALLEST_CACHE, dtype) > exact
        )


def test_a_prompt_is_never_longer_than_planned(tiny: Any) -> None:
    model = model_runs.engine().load(tiny)
    for text in ("The state of the Union", "\u00e9\u4e2d\U0001f600" * 30, "x"):
        assert len(model.encode(text)) + Sampling().max_tokens <= generating([text], Sampling().max_tokens).length


def test_what_scoring_keeps_and_goes_through() -> None:
    cut = Windows(window=16, stride=8, tokens=100, batch=2)
    usage = scoring([4000, 40], cut, keeps=True)
    assert (usage.batch, usage.length, usage.generates) == (2, 16, False)
    assert usage.tokens == 2 * (100 + 11)  # every token is seen twice
    assert usage.keeps == (232, 112)
    assert scoring([4000], cut).keeps == ()
    assert scoring([4000], Windows(tokens=None)).tokens == 1001


def test_a_text_that_goes_past_the_positions_of_the_model(tiny: Any) -> None:
    """Counted in tokens where its bytes may be too many: an error, as in the run, or said; and as far as it is one."""
    text = " ".join(["whale"] * 40)
    count = len(model_runs.engine().load(tiny).tokenizer.encode(text, special=True))
    assert 40 <= count < 120

    def planned(room: int | None) -> Any:
        given = replace(tiny, config={**tiny.config, "max_position_embeddings": room})
        return model_runs.engine().plan(given, usage=generating(["a", text], 9))

    assert {planned(room).reads for room in (None, 1000, count + 9)} == {""}
    knows = "positions that the model knows, by config.json"
    assert planned(count + 7).reads == f"warning: 2 of 9 tokens may be past the {count + 7} {knows}"
    with pytest.raises(PlanError, match=f"prompt: {count} tokens, more than the {count - 1} {knows}") as caught:
        planned(count - 1)
    assert caught.value.exit_code == 2

"""Plans where there are no weights: of a folder with a config.json, and of checkpoints that are known by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.api import compose_run
from pipeline.errors import PlanError, SourceError, WeightmillError
from pipeline.planning.memory import plan_run
from pipeline.planning.wiring import Plan
from pipeline.stage import Checkpoint
from pipeline.tensors.scheme import MXFP4
from tests.cases.hub_server import Repo, serving

TINY = Path(__file__).parents[3] / "plugins" / "models" / "gpt_oss" / "tiny"
QWEN = {
    "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 2, "vocab_size": 41, "num_experts": 3,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "rope_theta": 1e4, "torch_dtype": "float32",
}  # fmt: skip
MXFP4_CONFIG = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}

Planned = Callable[..., Plan]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planned:
    """A plan, as the verb `plan` makes it; of the folder `tmp_path`/model unless `model` is given."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    def plan(*overrides: str, fetch: bool = False) -> Plan:
        given = (
            overrides if any("model=" in o for o in overrides) else (f"model.source={tmp_path / 'model'}", *overrides)
        )
        return plan_run(compose_run([*given, f"paths.outputs={tmp_path / 'out'}"]), tmp_path / "run", fetch=fetch)

    return plan


@pytest.fixture
def config(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    """Writes a config.json, and nothing beside it."""

    def write(values: dict[str, Any]) -> Path:
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / "config.json").write_text(json.dumps(values))
        return tmp_path / "model"

    return write


def tiny(**change: Any) -> dict[str, Any]:
    return {**json.loads((TINY / "config.json").read_text()), **change}


def loaded(plan: Plan) -> Checkpoint:
    assert not plan.problems, plan.problems
    found = plan.nodes["load"].result
    assert isinstance(found, Checkpoint)
    return found


def test_a_config_says_what_the_checkpoint_would(planned: Planned, config: Any) -> None:
    """Without its weights, the embedded checkpoint has the same tensors, and the same plan."""
    config(tiny())
    without, with_all = planned("quant=mxfp4"), planned("+model=gpt_oss", "quant=mxfp4")
    assert dict(loaded(without).store.specs) == dict(loaded(with_all).store.specs)
    assert loaded(without).outline
    assert not loaded(with_all).outline
    assert loaded(without).config == loaded(with_all).config
    assert "shapes only, no weights are here" in loaded(without).origin
    assert without.written_nbytes == pytest.approx(with_all.written_nbytes, rel=0.1)  # no tokenizer is carried along
    for stage in ("evaluate", "generate"):
        assert without.takes[stage].device_nbytes == with_all.takes[stage].device_nbytes


def test_a_run_is_refused_as_ever(planned: Planned, config: Any) -> None:
    config(tiny())
    plan = planned("model=gpt_oss", f"model.source={config(tiny())}", fetch=True)
    assert any("is no checkpoint that can be read" in p.message for p in plan.problems)


def test_weights_that_nothing_reads_are_said_before_the_run(planned: Planned, config: Any) -> None:
    folder = config(tiny())
    (folder / "pytorch_model.bin").write_bytes(b"pickled")
    plan = planned("+model=gpt_oss", f"model.source={folder}")
    assert any("is no checkpoint that can be read" in p.message for p in plan.problems)


def test_nothing_of_it_can_be_read(planned: Planned, config: Any) -> None:
    config(tiny())
    store = loaded(planned()).store
    with pytest.raises(SourceError, match="only its shape is known"):
        store.read("model.norm.weight")


def test_a_tokenizer_that_is_there_is_looked_at(planned: Planned, config: Any) -> None:
    """None need be; a broken one is found where it would be found."""
    folder = config(tiny())
    assert not planned().problems
    shutil.copy(TINY / "tokenizer.json", folder)
    plan = planned()
    assert "tokenizer.json" in loaded(plan).files


def test_experts_one_by_one_in_the_stated_dtype(planned: Planned, config: Any) -> None:
    config(QWEN)
    specs = loaded(planned()).store.specs
    assert len([n for n in specs if ".experts." in n]) == 2 * 3 * 3
    assert specs["model.layers.1.mlp.experts.2.down_proj.weight"].shape == (64, 32)
    assert {s.dtype for s in specs.values()} == {"F32"}


def test_experts_that_are_packed(planned: Planned, config: Any) -> None:
    def packed(**quantization: Any) -> list[str]:
        config(tiny(quantization_config={**MXFP4_CONFIG, **quantization}))
        specs = loaded(planned()).store.specs
        return [n.removeprefix("model.layers.") for n, s in specs.items() if s.scheme == MXFP4]

    both = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    everything = [f"{i}.{matrix}" for i in range(4) for matrix in both]
    assert packed() == everything
    assert packed(modules_to_not_convert=None) == everything
    assert packed(modules_to_not_convert=["model.layers.1.mlp.experts", "3.mlp.experts"]) == [
        f"{i}.{matrix}" for i in (0, 2) for matrix in both
    ]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another quantization": (tiny(quantization_config={"quant_method": "fp8"}), "does not tell how they .*'fp8'"),
    "one of another model": ({**QWEN, "quantization_config": MXFP4_CONFIG}, "does not tell how they .*'mxfp4'"),
    "no list": (tiny(quantization_config={**MXFP4_CONFIG, "modules_to_not_convert": "all"}), "'all' is no list of nam"),
    "no pattern": (tiny(quantization_config={**MXFP4_CONFIG, "modules_to_not_convert": ["("]}), "no regular expressi"),
    "no blocks": (tiny(quantization_config=MXFP4_CONFIG, hidden_size=70), "does not allow MXFP4 here"),
    "no object": (tiny(quantization_config=[]), "an object is expected"),
    "dtype": (tiny(dtype="float8_e4m3fn"), "config.json dtype: 'float8_e4m3fn' is no dtype"),
    "sizes": (tiny(num_hidden_layers=0), "num_hidden_layers: 0 must be positive"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_a_config_alone_does_not_tell(case: str, planned: Planned, config: Any) -> None:
    values, said = BAD[case]
    folder = config(values)
    option = "qwen_moe" if values["model_type"] == "qwen3_moe" else "gpt_oss"
    plan = planned(f"+model={option}", f"model.source={folder}")
    assert len(plan.problems) > 0
    with pytest.raises(WeightmillError, match=said):
        raise PlanError(plan.problems)


def test_a_model_that_no_family_knows(planned: Planned, config: Any) -> None:
    folder = config({"model_type": "gpt_os"})
    plan = planned("+model=gpt_oss", f"model.source={folder}", "model.model_types=[gpt_os]")
    [problem] = plan.problems
    assert "no family knows those of model_type 'gpt_os'; did you mean 'gpt_oss'" in problem.message


def test_models_known_by_name(planned: Planned) -> None:
    found = loaded(planned("+model=gpt_oss_20b", "hub.offline=true", "flow=convert"))
    assert found.origin.startswith("config.json of hf://openai/gpt-oss-20b as Weightmill has it: is not in")
    assert sum(found.stored.values()) == 13_761_264_768
    assert "quantization_config" not in found.config


def test_models_known_by_name_where_nobody_answers(planned: Planned) -> None:
    found = loaded(planned("+model=qwen3_0_6b", "hub.endpoint=http://127.0.0.1:9", "flow=convert"))
    assert "as Weightmill has it: cannot be read from http://127.0.0.1:9" in found.origin
    repo = {
        "openai/gpt-oss-20b": Repo({}, refused=(404, "RepoNotFound")),
        "openai/gpt-oss-120b": Repo({}, refused=(403, "GatedRepo")),
    }
    with serving() as server:
        server.repos.update(repo)
        plan = planned("+model=gpt_oss_20b", f"hub.endpoint={server.url}", "flow=convert")
        assert any("has no such repository" in p.message for p in plan.problems), "somebody knows better"
        found = loaded(planned("+model=gpt_oss_120b", f"hub.endpoint={server.url}", "flow=convert"))
        assert "as Weightmill has it: is gated" in found.origin


def test_only_the_very_checkpoint_is_known(planned: Planned) -> None:
    for address in ("hf://openai/gpt-oss-20b@v1", "hf://openai/gpt-oss-20b/original", "hf://somebody/gpt-oss-20b"):
        plan = planned("+model=gpt_oss_20b", f"model.source={address}", "hub.offline=true", "flow=convert")
        assert any("without hub.offline=true it is downloaded" in p.message for p in plan.problems)
    plan = planned("+model=gpt_oss_20b", "hub.offline=true", "flow=convert", fetch=True)
    assert any("without hub.offline=true it is downloaded" in p.message for p in plan.problems), "not for a run"


def test_the_cache_wins(planned: Planned, tmp_path: Path) -> None:
    """A config.json that was downloaded before goes before the one that comes along."""
    repo = tmp_path / "hub" / "models--openai--gpt-oss-20b"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("c" * 40)
    folder = repo / "snapshots" / ("c" * 40)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(tiny()))
    found = loaded(planned("+model=gpt_oss_20b", f"hub.cache={tmp_path / 'hub'}", "hub.offline=true", "flow=convert"))
    assert found.origin.startswith(f"hf://openai/gpt-oss-20b@{'c' * 12}, of which the cache has no weights · shapes")
    assert found.config["num_hidden_layers"] == 4

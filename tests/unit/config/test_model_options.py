"""conf/model: every option composes, names what it should, and quantizes what it says."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from omegaconf import OmegaConf
from safetensors.numpy import save_file

from pipeline.api import compose_run
from pipeline.config.options import CONF, options
from pipeline.errors import PlanError
from pipeline.planning.memory import plan_run
from plugins.formats.hub.files import Address
from plugins.models.cnn.family import Cnn
from plugins.models.gemma.family import Gemma
from plugins.models.gpt_oss.family import GptOss
from plugins.models.llama.family import Llama
from plugins.models.mlp.family import Mlp
from plugins.models.qwen.family import Qwen

PAGE = (Path(__file__).parents[3] / "docs/sources.md").read_text(encoding="utf-8")
BY_FAMILY = ("gemma3", "llama", "qwen", "qwen_moe", "smollm2")  # these ask for a source
OWN = ("gpt_oss", "mlp", "cnn")  # and these have one here
PUBLISHED = [n for n in options("model") if n not in (*BY_FAMILY, *OWN)]


@cache
def model(*overrides: str) -> Any:
    """For all who ask the same; to be looked at only."""
    return compose_run([*overrides, "flow=convert"]).tree["model"]


@pytest.mark.parametrize("name", options("model"))
@pytest.mark.brief(each=lambda call: call["name"].partition("_")[0])
def test_it_composes(name: str) -> None:
    found = model(f"+model={name}", *(["model.source=here"] if name in BY_FAMILY else []))
    assert {*found} == {"source", "model_types", "roles", "extra_rules", "rules"}
    assert {rule["role"] for rule in found["rules"] if "role" in rule} <= {*found["roles"]}
    assert {r["to"] for r in found["rules"]} == {"quant"}  # what is left stays, and under quant=none is unpacked


@pytest.mark.parametrize("name", BY_FAMILY)
def test_it_asks_for_a_source(name: str) -> None:
    with pytest.raises(PlanError, match=r"model\.source"):
        model(f"+model={name}")


def test_published_checkpoints_are_addresses_that_a_page_lists() -> None:
    assert len(PUBLISHED) > 12
    sources = [model(f"+model={name}")["source"] for name in PUBLISHED]
    assert len({Address.parse(s) for s in sources}) == len(PUBLISHED)
    lacking = [n for n, s in zip(PUBLISHED, sources, strict=True) if f"`{n}`" not in PAGE]
    assert lacking == []


def test_an_option_built_on_another_is_overridden_like_any() -> None:
    found = model("+model=gpt_oss_20b", "model.rules=[{role: attention, to: quant}, {match: '*', to: keep}]")
    assert found["source"] == "hf://openai/gpt-oss-20b"
    assert found["model_types"] == ["gpt_oss"]
    assert found["rules"] == [{"role": "attention", "to": "quant"}, {"match": "*", "to": "keep"}]
    assert model("+model=qwen3_8b", "model.source=here")["source"] == "here"


def test_each_model_type_that_runs_has_one_option() -> None:
    """As `pipeline.load_model` looks for it: in the files themselves, so that options built on others are none."""
    loaded = {n: OmegaConf.load(CONF / "model" / f"{n}.yaml") for n in options("model")}
    types = [t for node in loaded.values() for t in node.get("model_types", ())]
    runnable = [t for family in (Cnn, Gemma, GptOss, Llama, Mlp, Qwen) for t in family.model_types]
    assert sorted(types) == sorted(runnable)


def test_rules_of_models_with_experts_one_by_one(tmp_path: Path) -> None:
    shapes = {"self_attn.q_proj": (96, 64), "self_attn.k_norm": (16,), "mlp.gate": (3, 64), "input_layernorm": (64,)}
    shapes |= {f"mlp.experts.{e}.{m}_proj": (64, 64) for e in range(3) for m in ("gate", "up", "down")}
    names = {f"model.layers.0.{n}.weight": s for n, s in shapes.items()}
    names |= {"model.layers.1.mlp.up_proj.weight": (32, 64), "model.embed_tokens.weight": (17, 64)}
    names |= {"lm_head.weight": (17, 64), "model.norm.weight": (64,)}
    save_file({n: np.zeros(s, ml_dtypes.bfloat16) for n, s in names.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_moe"}))
    run = compose_run(["+model=qwen_moe", f"model.source={tmp_path}", "quant=mxfp4", "stages=[load,decode,quantize]"])
    plan = plan_run(run, tmp_path / "run")
    assert not plan.problems
    specs = plan.nodes["quantize"].result.store.specs
    assert {n for n, spec in specs.items() if spec.scheme is not None} == {n for n in names if "_proj" in n}

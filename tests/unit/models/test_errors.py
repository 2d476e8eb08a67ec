"""What does not fit is said before anything is loaded: everything at once, by name, with what was expected."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from pipeline.api import compose_run
from pipeline.engine import weights_rows
from pipeline.errors import ConfigError, PlanError, Problem, WeightmillError
from pipeline.mesh import Parameter
from pipeline.planning.memory import plan_run
from pipeline.reporting import console
from pipeline.running import text_stream
from pipeline.stage import Checkpoint
from pipeline.tensors.scheme import MXFP4
from pipeline.testing.memory import MemoryStore
from pipeline.units import show_bytes
from plugins.engine.observe import outlined
from plugins.models.gemma.family import Gemma
from plugins.models.llama.family import Llama
from tests.cases import model_runs, toy_gpt_oss, toy_llama
from tests.cases.quantized import quantized


def llama(tensors: dict[str, Any] | None = None, **config: Any) -> Checkpoint:
    """The toy Llama; a config value of None is left out."""
    changed = {k: v for k, v in {**toy_llama.CONFIG, **config}.items() if v is not None}
    return Checkpoint(MemoryStore(toy_llama.weights() if tensors is None else tensors), changed)


def gpt_oss(**config: Any) -> Checkpoint:
    toy = toy_gpt_oss.make()
    return Checkpoint(MemoryStore(toy.logical), {**toy.config, **config})


def problems(checkpoint: Checkpoint) -> dict[str, str]:
    """Where → what, of everything that stands in the way of loading; the plan says the same, before."""
    with pytest.raises(PlanError) as caught:
        model_runs.engine().load(checkpoint)
    with pytest.raises(PlanError) as planned:
        model_runs.engine().plan(checkpoint, text=False)
    assert {*map(_begins, planned.value.problems)} == {*map(_begins, caught.value.problems)}
    assert all(p.message.endswith("; flow=convert needs no model to run") for p in planned.value.problems)
    assert planned.value.exit_code == caught.value.exit_code
    return {p.where: p.message for p in caught.value.problems}


def _begins(problem: Problem) -> tuple[str, str]:
    """A problem without all that is allowed, which tables and constructors list each in their order."""
    return problem.where, problem.message.partition(" (allowed")[0].partition("; flow=")[0]


def test_nothing_is_wrong_with_the_toys() -> None:
    ids = np.arange(6, dtype=np.int32).reshape(2, 3)
    with model_runs.quick_compilation():
        for checkpoint in (llama(), gpt_oss()):
            logits = model_runs.engine().load(checkpoint).runtime.forward(ids, ids)
            assert np.isfinite(logits).all()


def test_all_that_is_wrong_with_tensors_at_once() -> None:
    tensors = toy_llama.weights()
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    tensors["model.layers.1.self_attn.key_proj.weight"] = np.zeros((32, 128), ml_dtypes.bfloat16)
    tensors["model.layers.0.mlp.down_proj.weight"] = np.zeros((192, 128), np.float32)
    tensors["model.norm.weight"] = np.zeros(128, np.int32)
    found = problems(llama(tensors))
    assert found == {
        "model.layers.1.self_attn.k_proj.weight": found["model.layers.1.self_attn.k_proj.weight"],
        "model.layers.1.self_attn.key_proj.weight": found["model.layers.1.self_attn.key_proj.weight"],
        "model.layers.0.mlp.down_proj.weight": (
            "has shape [192, 128]; config.json makes it [128, 192], "
            "by hidden_size 128 and intermediate_size 192: it lies transposed"
        ),
        "model.norm.weight": "is I32; BF16, F16, F32 or a packed encoding is needed",
    }
    missing = found["model.layers.1.self_attn.k_proj.weight"]
    assert missing.startswith("is missing; did you mean 'model.layers.1.self_attn.key_proj.weight'")
    left = found["model.layers.1.self_attn.key_proj.weight"]
    assert left.startswith("no part of the model takes it; did you mean 'model.layers.1.self_attn.k_proj.weight'")


@pytest.mark.parametrize(
    ("key", "given", "tensor", "said"),
    [
        ("vocab_size", 60, "model.embed_tokens.weight", "[67, 128]; config.json makes it [60, 128], by vocab_size 60"),
        ("intermediate_size", 96, "model.layers.0.mlp.up_proj.weight", "makes it [96, 128], by intermediate_size 96"),
        ("hidden_size", 64, "model.norm.weight", "has shape [128]; config.json makes it [64], by hidden_size 64"),
        (
            "num_key_value_heads", 6, "model.layers.0.self_attn.k_proj.weight",
            "by num_key_value_heads 6 and head_dim 16; and so have 2 more like it",
        ),
    ],
)  # fmt: skip
def test_shapes_that_config_json_contradicts_name_the_key(key: str, given: int, tensor: str, said: str) -> None:
    found = problems(llama(**{key: given}))
    assert said in found[tensor]
    assert all(key in message for message in found.values())


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        (2, "2, and the checkpoint has tensors of 3 layers, among them model.layers.2.input_layernorm.weight"),
        (4, "4, and the checkpoint has tensors of 3 layers, and no model.layers.3.input_layernorm.weight"),
    ],
)
def test_another_number_of_layers_is_said_once(layers: int, said: str) -> None:
    assert problems(llama(num_hidden_layers=layers)) == {"config.json num_hidden_layers": said}


def test_tensors_that_no_model_reads() -> None:
    """Tied heads and stored rotary frequencies are passed over, and are not counted; an untied head is needed."""
    tensors = toy_llama.weights()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)
    engine = model_runs.engine()
    nbytes = engine.load(llama(tensors, tie_word_embeddings=True)).runtime.device_nbytes
    head = tensors["lm_head.weight"].nbytes
    assert nbytes == engine.load(llama()).runtime.device_nbytes - head
    assert nbytes == sum(a.nbytes for a in toy_llama.weights(tied=True).values())
    assert "is missing" in problems(llama(toy_llama.weights(tied=True)))["lm_head.weight"]


def test_what_is_not_read_is_said_with_the_reason() -> None:
    tensors = toy_llama.weights()
    for i in (0, 1):
        tensors[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)
    checkpoint, engine = llama(tensors, tie_word_embeddings=True), model_runs.engine()
    planned, facts = engine.plan(checkpoint, text=False), engine.load(checkpoint).facts
    assert set(planned.ignored) == {n for n in tensors if "lm_head" in n or "inv_freq" in n}
    assert facts["ignored"] == planned.ignored
    assert facts["planned_nbytes"] == facts["device_nbytes"] == planned.device_nbytes
    assert set(planned.ignored.values()) == {
        "the embedding is the head as well (tie_word_embeddings)",
        "computed from config.json",
    }
    assert weights_rows(facts) == [("weights on the device", f"{show_bytes(planned.device_nbytes)} (cpu)")]


@dataclass(frozen=True)
class Ties(Llama):
    """Builds what the config does not say, as Gemma does; and as the plan does not know, when `tied` is wrong."""

    tied: ClassVar[bool] = True

    def parameters(self, config: Any) -> tuple[Parameter, ...]:
        return super().parameters({**config, "tie_word_embeddings": self.tied})

    def build(self, config: Any, weights: Any, ops: Any, dtype: str) -> Any:
        return super().build({**config, "tie_word_embeddings": True}, weights, ops, dtype)


@dataclass(frozen=True)
class TiesUnseen(Ties):
    tied: ClassVar[bool] = False


def test_a_plan_that_was_wrong_is_said() -> None:
    checkpoint = llama(tie_word_embeddings=None)
    right = replace(model_runs.engine(), families=(Ties(),))
    facts = right.load(checkpoint).facts
    assert facts["planned_nbytes"] == facts["device_nbytes"] == right.plan(checkpoint, text=False).device_nbytes
    wrong = replace(model_runs.engine(), families=(TiesUnseen(),))
    shown: list[str] = []
    with text_stream.to(shown.append):
        facts = wrong.load(checkpoint).facts
    head = toy_llama.weights()["lm_head.weight"].nbytes
    assert facts["planned_nbytes"] == facts["device_nbytes"] + head == wrong.plan(checkpoint, text=False).device_nbytes
    [said] = shown
    assert "on the device, where" in said
    assert ("but planned were", f"{show_bytes(facts['planned_nbytes'])}; please report it") in weights_rows(facts)
    assert (Gemma.tied, Llama.tied) == (True, False)


def test_experts_of_different_encodings_cannot_be_stacked() -> None:
    rng = np.random.default_rng(0)
    names = {"model.embed_tokens.weight": (67, 64), "model.norm.weight": (64,), "lm_head.weight": (67, 64)}
    layer = "model.layers.0"
    for norm in ("input_layernorm", "post_attention_layernorm"):
        names[f"{layer}.{norm}.weight"] = (64,)
    for x, rows in (("q", 48), ("k", 16), ("v", 16)):
        names[f"{layer}.self_attn.{x}_proj.weight"] = (rows, 64)
    for x in "qk":
        names[f"{layer}.self_attn.{x}_norm.weight"] = (8,)
    names |= {f"{layer}.self_attn.o_proj.weight": (64, 48), f"{layer}.mlp.gate.weight": (3, 64)}
    for e in range(3):
        names |= {f"{layer}.mlp.experts.{e}.{x}_proj.weight": (32, 64) for x in ("gate", "up")}
        names[f"{layer}.mlp.experts.{e}.down_proj.weight"] = (64, 32)
    tensors: dict[str, Any] = {n: rng.standard_normal(s).astype(ml_dtypes.bfloat16) for n, s in names.items()}
    config = {
        "model_type": "qwen3_moe", "hidden_size": 64, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8,
        "num_hidden_layers": 1, "intermediate_size": 96, "vocab_size": 67, "num_experts": 3, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "rope_theta": 100.0,
    }  # fmt: skip
    model_runs.engine().load(Checkpoint(MemoryStore(tensors), config))
    tensors[f"{layer}.mlp.experts.1.up_proj.weight"] = quantized(MXFP4, (32, 64))
    found = problems(Checkpoint(MemoryStore(tensors), config))
    [(where, what)] = found.items()
    assert where == f"{layer}.mlp.experts.0.up_proj.weight"
    assert what == "3 tensors are stacked into one, but their encodings differ: BF16, e2m1/32/e8m0"


@pytest.mark.parametrize(
    ("make", "given", "said"),
    [
        (llama, {"hidden_act": 5}, "5 is no str (allowed: silu, swish, gelu, gelu_pytorch_tanh, gelu_new, relu)"),
        (llama, {"num_attention_heads": "6"}, "'6' is no int"),
        (gpt_oss, {"num_hidden_layers": "3", "layer_types": ["full_attention"] * 3}, "'3' is no int"),
        (gpt_oss, {"num_local_experts": "5"}, "'5' is no int"),
        (gpt_oss, {"hidden_act": []}, "[] is no str (allowed: silu)"),
        (gpt_oss, {"hidden_size": None}, "is null; a whole number is expected"),
        (gpt_oss, {"rms_norm_eps": "1e-5"}, "'1e-5' is no float"),
    ],
)
def test_one_mistake_is_one_problem(make: Callable[..., Checkpoint], given: dict[str, Any], said: str) -> None:
    [(key, _), *_] = given.items()
    assert problems(make(**given)) == {f"config.json {key}": said}


def test_all_that_is_wrong_with_the_config_at_once() -> None:
    found = problems(
        llama(hidden_size="128", num_attention_heads=0, intermediate_size=None, hidden_act="silo", rms_norm_eps=True)
    )
    assert found == {
        "config.json hidden_size": "'128' is no int",
        "config.json num_attention_heads": "0 must be positive",
        "config.json intermediate_size": found["config.json intermediate_size"],
        "config.json hidden_act": found["config.json hidden_act"],
        "config.json rms_norm_eps": "True is no float",
    }
    assert found["config.json intermediate_size"].startswith("is missing")
    assert found["config.json hidden_act"].startswith("'silo' is not supported; did you mean 'silu'")


GIVEN: dict[str, tuple[Callable[[], Checkpoint], str, str]] = {
    "another model": (
        lambda: llama(model_type="lama"), "config.json model_type",
        "'lama' is no model that can run; did you mean 'llama'",
    ),
    "no model type": (lambda: llama(model_type=None), "config.json model_type", "None is no model that can run"),
    "layer types": (
        lambda: gpt_oss(layer_types=["full_attention", "chunked_attention", "full_attention"]),
        "config.json layer_types",
        "'chunked_attention'",
    ),
    "too few layer types": (
        lambda: gpt_oss(layer_types=["full_attention"]), "config.json layer_types", "for each of 3 layers"
    ),
    "a tied head": (lambda: gpt_oss(tie_word_embeddings=True), "config.json tie_word_embeddings", "a head of its own"),
    "more choices than experts": (
        lambda: gpt_oss(num_experts_per_tok=6), "config.json num_experts_per_tok", "6 of 5 experts"
    ),
    "attention to what is to come": (
        lambda: llama(is_causal=False), "config.json is_causal", "only causal attention is supported"
    ),
    "layers of several sizes": (
        lambda: llama(per_layer_config={"1": {"rms_norm_eps": 0.5}}), "config.json per_layer_config", "not supported"
    ),
    "a window of nothing": (
        lambda: llama(model_type="mistral", sliding_window=0), "config.json sliding_window", "0 must be positive"
    ),
    "layers that slide over nothing": (
        lambda: gpt_oss(sliding_window=None), "config.json sliding_window", "needs a window, and it is null"
    ),
    "choices under another name": (
        lambda: gpt_oss(num_experts_per_tok=None, experts_per_token=2), "config.json experts_per_token",
        "2: transformers reads num_experts_per_tok, and takes 4 where that is absent",
    ),
    "heads that share unevenly": (
        lambda: llama(num_key_value_heads=4), "config.json num_key_value_heads", "6 heads cannot share 4"
    ),
    "an activation of gpt-oss": (
        lambda: gpt_oss(hidden_act="gelu"), "config.json hidden_act", "'gelu' is not supported"
    ),
}  # fmt: skip


@pytest.mark.parametrize("given", GIVEN)
def test_values_that_cannot_be(given: str) -> None:
    make, where, message = GIVEN[given]
    assert message in problems(make())[where]


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "ntk", "rope_theta": 10000.0}, "'ntk' is unknown"),
        ({"rope_type": "linear", "rope_theta": 10000.0}, "needs the number 'factor'"),
        ({"rope_type": "default", "rope_theta": "10000"}, "needs the number 'rope_theta', got '10000'"),
    ],
)
def test_rope(rope: dict[str, Any], message: str) -> None:
    with pytest.raises(WeightmillError, match=message):
        model_runs.engine().load(llama(rope_parameters=rope))


def test_rope_of_gpt_oss_where_the_config_is_silent() -> None:
    """It is GptOssConfig's YaRN, not a plain rope: the model is the same in all that is no weight."""
    silent = gpt_oss()
    silent = replace(silent, config={k: v for k, v in silent.config.items() if k != "rope_parameters"})
    spelled = gpt_oss(
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 150000, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": 4096,
        }
    )  # fmt: skip
    got, want, other = (nnx.split(outlined(model_runs.engine(), c))[0] for c in (silent, spelled, gpt_oss()))
    assert got == want
    assert got != other


def test_devices() -> None:
    with pytest.raises(ConfigError, match=r"'gpu:7'.*no such device"):
        replace(model_runs.engine(), device="gpu:7").load(llama())
    assert replace(model_runs.engine(), device="cpu:3").load(llama()).runtime.device.id == 3


def test_the_plan_says_once_what_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.numpy import save_file

    save_file({n: a.astype(np.float32) for n, a in toy_llama.weights().items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**toy_llama.CONFIG, "tie_word_embeddings": True}))
    shutil.copy(Path(model_runs.CONF).parent / "plugins/models/gpt_oss/tiny/tokenizer.json", tmp_path)
    for flow, said in (("generate", 1), ("convert", 0)):
        run = compose_run(["+model=llama", f"model.source={tmp_path}", "quant=none", f"flow={flow}"])
        plan = plan_run(run, tmp_path / "run")
        assert not plan.problems
        console.out(*console.plan_tables(plan))
        assert capsys.readouterr().out.count("the embedding is the head as well (tie_word_embeddings)") == said

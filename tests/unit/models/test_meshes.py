"""Published models over the meshes of conf/mesh, by config.json alone: bytes by hand, and which sizes are legal."""

import json
from functools import cache

import pytest

from pipeline.api import compose_run
from pipeline.errors import PlanError
from pipeline.mesh import Exchange, Mesh, Parameter
from pipeline.planning.layout import largest_whole, lay_out
from pipeline.planning.mesh_costs import exchanges, weights_nbytes
from pipeline.tensors.scheme import MXFP4
from pipeline.tensors.spec import TensorSpec
from plugins.models.device import cache_nbytes
from plugins.models.gemma.family import Gemma
from plugins.models.gpt_oss.family import GptOss
from plugins.models.llama.family import Llama
from plugins.models.qwen.family import Qwen

FAMILIES = (GptOss(), Llama(), Qwen(), Gemma())
PUBLISHED = {path.stem: (family, path) for family in FAMILIES for path in sorted(family.published.glob("*/*.json"))}
MOE = {"gpt-oss-20b", "gpt-oss-120b", "Qwen3-30B-A3B"}
# gpt-oss (config.json): layers and experts, and by layer what has no `experts`
SIZES = {"gpt-oss-20b": (24, 32), "gpt-oss-120b": (36, 128)}
HIDDEN, VOCAB, Q, KV, INTER = 2880, 201088, 64 * 64, 8 * 64, 2880


@cache
def mesh(name: str, **axes: int) -> Mesh:
    typed = [f"mesh.axes.{axis}={size}" for axis, size in axes.items()]
    run = compose_run(["+model=gpt_oss", "flow=evaluate", f"mesh={name}", *typed])
    found = run.stages["evaluate"].engine.mesh
    assert isinstance(found, Mesh)
    return found


@cache
def model(name: str) -> tuple[tuple[Parameter, ...], dict[str, TensorSpec]]:
    """Its parameters, and their specs with experts in mxfp4, as gpt-oss is published."""
    family, path = PUBLISHED[name]
    parameters = family.parameters(json.loads(path.read_text()))
    specs = {}
    for p in parameters:
        scheme = MXFP4 if p.axes[0] == "experts" and len(p.shape) == 3 else None
        specs |= {n: TensorSpec(p.shape[1:] if p.stack else p.shape, "BF16", scheme) for n in p.names}
    return parameters, specs


def experts_nbytes(name: str) -> int:
    """gate_up and down in mxfp4 (4 bits, and 8 for 32 of them), and their biases in bf16."""
    layers, experts = SIZES[name]
    return layers * experts * (3 * INTER * HIDDEN * 17 // 32 + 2 * (2 * INTER + HIDDEN))


def attention_nbytes(name: str) -> int:
    """q, k, v and o with biases, and sinks."""
    return SIZES[name][0] * 2 * (2 * Q * HIDDEN + Q + HIDDEN + 2 * (KV * HIDDEN + KV) + 64)


def rest_nbytes(name: str) -> int:
    """Norms, and the weights of routers."""
    layers, experts = SIZES[name]
    return 2 * HIDDEN * (layers * (2 + experts) + 1)


def router_bias_nbytes(name: str) -> int:
    layers, experts = SIZES[name]
    return 2 * layers * experts


def held(name: str, on: Mesh) -> int:
    parameters, specs = model(name)
    return weights_nbytes(on, parameters, specs, lay_out(on, parameters, specs, devices=on.size))


@pytest.mark.parametrize("name", SIZES)
def test_what_gpt_oss_takes_on_1_8_and_64_devices(name: str) -> None:
    vocab = 2 * 2 * VOCAB * HIDDEN
    divided = experts_nbytes(name) + attention_nbytes(name) + rest_nbytes(name) + vocab
    bias = router_bias_nbytes(name)
    assert held(name, mesh("single")) == divided + bias
    assert held(name, mesh("fsdp", fsdp=8)) == held(name, mesh("expert", expert=8)) == divided // 8 + bias
    # 8 heads of keys are not cut into 64, so their biases lie whole
    kv_bias = 2 * 2 * KV * SIZES[name][0]
    assert held(name, mesh("fsdp", fsdp=64)) == (divided - kv_bias) // 64 + kv_bias + bias
    # heads, vocabulary and the inside of experts lie over both axes (those biases over tensor), the rest over fsdp
    rest = rest_nbytes(name) + SIZES[name][0] * 2 * HIDDEN * (1 + SIZES[name][1])  # biases of o and down
    both = divided - rest - kv_bias
    assert held(name, mesh("fsdp_tensor", fsdp=32)) == both // 64 + kv_bias // 2 + rest // 32 + bias


def test_120b_on_64_devices_by_experts() -> None:
    parameters, specs = model("gpt-oss-120b")
    on = mesh("expert", expert=64)
    layouts = lay_out(on, parameters, specs)
    assert layouts["model.layers.0.mlp.experts.gate_up_proj"].local_shape(on) == (2, 2 * INTER, HIDDEN)
    assert weights_nbytes(on, parameters, specs, layouts) * 64 < 1.1 * held("gpt-oss-120b", mesh("single"))
    whole = dict(largest_whole(parameters, specs, layouts))
    assert {name.rpartition(".")[2] for name in whole} == {"bias"}


def test_what_a_token_sends_by_experts() -> None:
    """8 devices: 2 · 7 / 8 of a sum in each layer, 7 / 8 of the logits, 7 / 8 of what only lies divided."""
    parameters, specs = model("gpt-oss-20b")
    on = mesh("expert", expert=8)
    layouts = lay_out(on, parameters, specs)
    sent = exchanges(on, parameters, specs, layouts, tokens=1, predicted=1, activation_nbytes=2)
    layers = SIZES["gpt-oss-20b"][0]
    stored = attention_nbytes("gpt-oss-20b") + rest_nbytes("gpt-oss-20b")
    gathered = 12 * layers + 1  # q, k, v, o and their biases, sinks, two norms, the router; and the last norm
    assert {e.place: e for e in sent} == {
        "embedding": Exchange("embedding", "psum", ("expert",), 1, HIDDEN * 2 * 2 * 7 // 8),
        "gather": Exchange("gather", "all_gather", ("expert",), gathered, stored * 7 // 8),
        "experts": Exchange("experts", "psum", ("expert",), layers, layers * HIDDEN * 4 * 2 * 7 // 8),
        "logits": Exchange("logits", "all_gather", ("expert",), 1, VOCAB * 4 * 7 // 8),
    }


def test_the_cache_of_one_device() -> None:
    """2 of 4 rows and 4 of 8 heads; every other layer remembers 128 tokens."""
    _, specs = model("gpt-oss-20b")
    config = json.loads(PUBLISHED["gpt-oss-20b"][1].read_text())
    full, slides = 4096, 128
    keys = 2 * 2 * (4 * 64) * 2 * 12 * (full + slides)
    assert cache_nbytes(specs, config, 2, full, "bf16", 2) == keys + 4 * 2 * (full + slides)
    scales = 2 * 2 * 4 * 4 * 12 * (full + slides)
    assert cache_nbytes(specs, config, 2, full, "int8", 2) == keys // 2 + scales + 4 * 2 * (full + slides)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_model_lies_on_8_devices_as_it_is_or_in_parts(name: str) -> None:
    parameters, specs = model(name)
    whole = sum(s.nbytes for s in specs.values())
    assert held(name, mesh("data", data=8)) == whole
    for on in (mesh("fsdp", fsdp=8), mesh("multihost", host=1, fsdp=8)):
        assert held(name, on) * 8 < 1.1 * whole
    if name in MOE:
        assert held(name, mesh("expert", expert=8)) * 8 < 1.1 * whole
    else:
        with pytest.raises(PlanError, match="no tensor of this model has 'experts'"):
            lay_out(mesh("expert"), parameters, specs)


def refused(name: str, on: Mesh) -> dict[str, str]:
    parameters, specs = model(name)
    with pytest.raises(PlanError) as why:
        lay_out(on, parameters, specs)
    return {p.where: p.message.partition("legal: ")[2] for p in why.value.problems}


@pytest.mark.parametrize(
    ("name", "tensor", "legal"),
    [
        ("gpt-oss-20b", 8, {"mlp": "1, 2, 3, 5, 6, 9, 10, 15, 18, 30, 45, 90; with vocab, heads and kv_heads: 1, 2"}),
        ("Qwen3-30B-A3B", 8, {"kv_heads": "1, 2, 4"}),
        ("gemma-3-1b-it", 2, {"kv_heads": "1"}),
        (
            "SmolLM2-135M-Instruct",
            2,
            {
                "heads": "1, 3, 9; with vocab, kv_heads and mlp: 1, 3",
                "kv_heads": "1, 3",
            },
        ),
    ],
)
def test_what_tensor_parallelism_would_cut(name: str, tensor: int, legal: dict[str, str]) -> None:
    found = refused(name, mesh("tensor", tensor=tensor))
    assert found == {f"mesh.rules.{rule}": said for rule, said in legal.items()}


def test_two_ways_cut_no_block_of_gpt_oss() -> None:
    parameters, specs = model("gpt-oss-20b")
    on = mesh("fsdp_tensor", fsdp=4, tensor=2)
    down = lay_out(on, parameters, specs)["model.layers.0.mlp.experts.down_proj"]
    assert down.local_shape(on) == (8, HIDDEN, INTER // 2)  # 45 blocks
    assert down.used.local_shape(on) == (32, HIDDEN, INTER // 2)

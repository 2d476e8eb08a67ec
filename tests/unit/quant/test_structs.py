"""ggml's structs as a method: its bytes, what it does where super-blocks do not fit, importance, and the mixes."""

import re

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from pipeline.assigned import assigned
from pipeline.calibration import LinearStatistics
from pipeline.errors import ConfigError, ValueRangeError
from pipeline.rules import Rule
from pipeline.tensors.scheme import INSIDE, STRUCTS, Scheme
from pipeline.tensors.spec import TensorSpec
from plugins.facts.ggml_mixes import MIX_NUMBERS, MIXES, mix_of
from plugins.kernels.quantize import structs
from plugins.quant.blockwise import Blockwise
from plugins.quant.gptq import Gptq
from plugins.quant.imatrix import Imatrix
from plugins.quant.structs import Structs, WeightedStructs

KINDS = sorted(STRUCTS)


def weights(*shape, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.02).astype(np.float32)


def theirs(q):
    return gguf.dequantize(q.codes, GGMLQuantizationType[q.scheme.element.upper()])


@pytest.mark.parametrize("kind", KINDS)
def test_the_package_reads_what_we_decode(kind):
    """And it is near what was given: of two bits within a third of its size, of six within a fiftieth."""
    x = weights(3, 5, 512)
    method = Structs(kind)
    q = method.encode(x)
    assert np.array_equal(method.decode(q, "F32"), theirs(q))
    off = np.sqrt(np.mean((theirs(q) - x) ** 2) / np.mean(x**2))
    most = {"q2_k": 0.3, "q3_k": 0.17, "q4_k": 0.08, "q5_k": 0.04, "q6_k": 0.02, "iq4_nl": 0.09}
    assert off < most.get(kind, 0.045)
    assert TensorSpec(x.shape, "BF16", q.scheme).nbytes == q.nbytes == x.size * STRUCTS[kind][1] // STRUCTS[kind][0]


@pytest.mark.parametrize("kind", KINDS)
def test_bands_and_matrices_are_on_their_own(kind, monkeypatch):
    x, importance = weights(2, 7, 256), np.abs(weights(2, 256, seed=1))
    whole = Structs(kind).encode(x, importance=importance)
    monkeypatch.setattr(structs, "BAND", 3 * 256)
    for e in range(2):
        assert np.array_equal(Structs(kind).encode(x[e], importance=importance[e]).codes, whole.codes[e])
    assert np.array_equal(Structs(kind).encode(x[1, 4], importance=importance[1]).codes, whole.codes[1, 4])


def test_the_place_of_what_has_no_code_is_said(monkeypatch):
    monkeypatch.setattr(structs, "BAND", 2 * 256)
    x = weights(2, 5, 256)
    x[1, 3, 9] = np.inf
    with pytest.raises(ValueRangeError, match=f"^flat index {(5 + 3) * 256 + 9}: inf has no code in Q4_K"):
        Structs("q4_k").encode(x)


FALLBACK = {"q2_k": "Q4_0", "q3_k": "Q4_0", "q4_k": "Q5_0", "q5_k": "Q5_1", "q6_k": "Q8_0"}


@pytest.mark.parametrize(("kind", "other"), FALLBACK.items())
def test_rows_that_no_super_block_divides_get_what_llama_quantize_gives_them(kind, other):
    method = Structs(kind)
    assert method.fitted((4, 512)) is method
    assert method.fitted((4, 300)) is method, "which nothing fits: then the method itself says why"
    found = method.fitted((4, 160))
    if other in ("Q4_0", "Q8_0"):
        assert (found.scheme, found.like) == (Scheme({"Q4_0": "int4", "Q8_0": "int8"}[other], 32, "f16"), "ggml")
    else:
        assert found.scheme == Scheme(other.lower(), 32, INSIDE)


@pytest.mark.parametrize("kind", KINDS)
def test_importance_moves_errors_to_where_they_matter_less(kind):
    x = weights(2, 64, 256)
    mean_square = np.ones((2, 256), np.float32)
    mean_square[0, ::4], mean_square[1, 1::4] = 100, 100  # of each expert other columns
    told = Imatrix((0.9,)).calibrated(Structs(kind))
    assert type(told) is WeightedStructs
    assert (told.scheme, told.needs_statistics) == (Structs(kind).scheme, "mean_square")
    known = LinearStatistics(np.asarray([9, 9]), mean_square, mean_square)
    off = [theirs(q) - x for q in (Structs(kind).encode(x), told.encode(x, statistics=known))]
    plain, knowing = (np.sum(mean_square[:, None] * o * o, axis=(1, 2)) for o in off)
    assert (knowing < 0.95 * plain).all()


def test_what_is_asked_wrongly_is_refused():
    with pytest.raises(ConfigError, match="kind 'q4_m' is unknown; did you mean 'q4_k'"):
        Structs("q4_m")
    with pytest.raises(ConfigError, match="mix 'q4_k_x' is unknown; did you mean 'q4_k_"):
        Structs("q4_k", mix="q4_k_x")
    with pytest.raises(ConfigError, match="calibrate=gptq: WeightedStructs rounds in no blocks"):
        Gptq().calibrated(WeightedStructs("q4_k"))
    with pytest.raises(ConfigError, match=r"struct of ggml, which plugins\.quant\.structs\.Structs makes"):
        Blockwise("q4_k", 256, INSIDE)
    with pytest.raises(ConfigError, match="q4_k is a whole block of ggml's: of 256 in a row"):
        Scheme("q4_k", 32, "f16")


# What llama_model_quantize of llama.cpp (ggml 0.25.3) made of a Llama of 16 layers, 8 heads and 2 of keys: the digit of
# each layer's type, of v and of down; o and all others are alike in all layers.
RECORDED = {
    "q2_k": ("4444444444444444", "3333333333333333", "3"),
    "q3_k_s": ("3333333333333333", "3333333333333333", "3"),
    "q3_k_m": ("5544444444444444", "5444444444444444", "4"),
    "q3_k_l": ("5555555555555555", "5555555555555555", "5"),
    "q4_k_s": ("5555444444444444", "5544444444444444", "4"),
    "q4_k_m": ("6644644644644666", "6644644644644666", "4"),
    "q5_k_s": ("5555555555555555", "5555555555555555", "5"),
    "q5_k_m": ("6655655655655666", "6655655655655666", "5"),
}
# … and of the embedded gpt-oss, of 4 layers with 8 experts, whose rows 256 does not divide: of v and k, o, and down.
RECORDED_OSS = {
    "q2_k": ("Q8_0", "Q5_1", "Q4_0 Q4_0 Q4_0 Q4_0"),
    "q3_k_m": ("Q8_0", "Q5_1", "Q5_0 Q5_0 Q5_0 Q5_0"),
    "q3_k_l": ("Q8_0", "Q4_0", "Q5_1 Q5_1 Q5_1 Q5_1"),
    "q4_k_s": ("Q8_0", "Q5_1", "Q5_0 Q5_0 Q5_0 Q5_0"),
    "q4_k_m": ("Q8_0", "Q5_1", "Q5_0 Q5_0 Q8_0 Q8_0"),
    "q5_k_m": ("Q8_0", "Q5_1", "Q5_1 Q5_1 Q8_0 Q8_0"),
}
LAYER = {
    "self_attn.q_proj.weight": (256, 256), "self_attn.k_proj.weight": (64, 256), "self_attn.v_proj.weight": (64, 256),
    "self_attn.o_proj.weight": (256, 256), "mlp.gate_proj.weight": (512, 256), "mlp.down_proj.weight": (256, 512),
}  # fmt: skip
OSS_LAYER = {
    "self_attn.q_proj.weight": (192, 160), "self_attn.k_proj.weight": (64, 160), "self_attn.v_proj.weight": (64, 160),
    "self_attn.o_proj.weight": (160, 192), "mlp.experts.down_proj": (8, 160, 224),
}  # fmt: skip


def dealt(mix, layers, layer):
    """Tensor → the ggml type that `mix` comes to."""
    specs = {f"model.layers.{i}.{n}": TensorSpec(shape, "BF16") for i in range(layers) for n, shape in layer.items()}
    found, problems = assigned((Rule(match="*"),), {}, {"quant": Structs(mix[:4], mix)}, specs, again=False)
    assert not problems
    simple = {"int8": "Q8_0", "int4": "Q4_0"}
    return {n: simple.get(m.scheme.element, m.scheme.element.upper()) for n, m in found.items()}


@pytest.mark.parametrize("mix", RECORDED)
def test_a_mix_is_known_by_what_it_comes_to(mix):
    """And by no less; a model in which nothing is a k-quant is none, whatever its rows."""
    of, narrow = dealt(mix, 16, LAYER), {n: (*shape[:-1], 160) for n, shape in LAYER.items()}
    specs = {n: TensorSpec(LAYER[n.split(".", 3)[3]], "BF16") for n in of}
    kinds = {n: kind.lower() for n, kind in of.items()}
    assert mix_of(kinds, specs) == mix
    assert MIX_NUMBERS[mix] == gguf.LlamaFileType[f"MOSTLY_{mix.upper()}"]
    odd = {**LAYER, "self_attn.q_proj.weight": (256, 96)}
    kinds = {n: kind.lower() for n, kind in dealt(mix, 16, odd).items()}
    assert mix_of(kinds, {n: TensorSpec(odd[n.split(".", 3)[3]], "BF16") for n in of}) == mix
    kinds["model.layers.3.mlp.down_proj.weight"] = "q8_0"
    assert mix_of(kinds, specs) is None
    kinds = {n: kind.lower() for n, kind in dealt(mix, 16, narrow).items()}
    assert mix_of(kinds, {n: TensorSpec(narrow[n.split(".", 3)[3]], "BF16") for n in of}) is None


@pytest.mark.parametrize("mix", RECORDED)
def test_a_mix_is_that_of_llama_quantize(mix):
    found = dealt(mix, 16, LAYER)
    v, down, o = RECORDED[mix]

    def digits(matrix):
        return "".join(found[f"model.layers.{i}.{matrix}_proj.weight"][1] for i in range(16))

    assert (digits("self_attn.v"), digits("mlp.down"), digits("self_attn.o")) == (v, down, 16 * o)
    assert digits("self_attn.q") == digits("self_attn.k") == digits("mlp.gate") == 16 * mix[1]


@pytest.mark.parametrize("mix", RECORDED_OSS)
def test_a_mix_of_experts_is_that_of_llama_quantize(mix):
    found = dealt(mix, 4, OSS_LAYER)
    of = {m: [found[f"model.layers.{i}.self_attn.{m}_proj.weight"] for i in range(4)] for m in "kvo"}
    v, o, down = RECORDED_OSS[mix]
    assert (of["v"], of["k"], of["o"]) == ([v] * 4, [v] * 4, [o] * 4)
    assert [found[f"model.layers.{i}.mlp.experts.down_proj"] for i in range(4)] == down.split()


def test_every_mix_is_known_by_its_most():
    assert all(re.match("q[2-5]_k", mix)[0] in STRUCTS for mix in MIXES)
    assert (
        {*RECORDED, "q2_k_s"} == {*MIXES} == {*MIX_NUMBERS}
    )  # which llama-quantize makes with an importance matrix only

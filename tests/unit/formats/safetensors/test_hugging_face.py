"""export=hf for every model: gpt-oss in its packing, all others under their names."""

import pytest

from pipeline.api import compose_run
from pipeline.errors import PlanError
from pipeline.tensors.scheme import MXFP4
from pipeline.tensors.spec import TensorSpec
from plugins.formats.gpt_oss.dialect import GptOss
from plugins.formats.safetensors.hugging_face import HuggingFaceDialect
from plugins.formats.safetensors.plain import Plain
from tests.cases import toy_gpt_oss, toy_llama

LLAMA = {name: TensorSpec(array.shape, "BF16") for name, array in toy_llama.weights().items()}


def test_gpt_oss_is_as_before() -> None:
    toy = toy_gpt_oss.make("hf", "mxfp4")
    leaves = {n: TensorSpec(a.shape, "U8" if a.dtype == "u1" else "BF16") for n, a in toy.leaves.items()}
    read = HuggingFaceDialect().decode(leaves, toy.config)
    assert read == GptOss().decode(leaves, toy.config)
    specs = {n: b.spec for n, b in read.tensors.items()}
    assert any(spec.scheme == MXFP4 for spec in specs.values())
    assert HuggingFaceDialect().encode(specs, read.config) == GptOss().encode(specs, read.config)


def test_other_models_lie_under_their_names() -> None:
    written = HuggingFaceDialect().encode(LLAMA, toy_llama.CONFIG)
    assert written == Plain().encode(LLAMA, toy_llama.CONFIG)
    assert {**written.leaves} == LLAMA
    assert HuggingFaceDialect().decode(LLAMA, toy_llama.CONFIG) == Plain().decode(LLAMA, toy_llama.CONFIG)


def test_what_is_packed_and_has_no_packing_is_refused_with_the_cure() -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    specs = {**LLAMA, name: TensorSpec(LLAMA[name].shape, "BF16", MXFP4)}
    with pytest.raises(PlanError, match=r"is quantized \(e2m1/32/e8m0\).*'llama'.*export\.dtype=bf16.*export=auto"):
        HuggingFaceDialect().encode(specs, toy_llama.CONFIG)


def test_it_is_what_export_hf_writes() -> None:
    assert compose_run(["+model=gpt_oss", "export=hf"]).stages["export"].dialect == HuggingFaceDialect()
    assert compose_run(["+model=gpt_oss", "export=plain"]).stages["export"].dialect == Plain()

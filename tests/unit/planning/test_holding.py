"""export=auto: what it chooses for which encodings of which model, and what is said where nothing can hold them."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline.api import compose_run
from pipeline.assigned import assigned
from pipeline.errors import PlanError
from pipeline.planning.memory import plan_run
from pipeline.running.target import MARKER
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec
from plugins.formats.compressed_tensors.dialect import CompressedTensors
from plugins.formats.gguf.model import GgufDialect
from tests.cases import toy_gpt_oss, toy_llama
from tests.cases.memory_store import MemoryStore

PREFERRED = ("hf", "compressed_tensors", "modelopt", "bitsandbytes", "gguf")
MLP = "model.rules=[{role: mlp, to: quant}]"  # rows that blocks of 64 divide


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    (folder / "llama").mkdir()
    save_file(toy_llama.weights(), folder / "llama" / "model.safetensors")
    (folder / "llama" / "config.json").write_text(json.dumps(toy_llama.CONFIG))
    return {
        "llama": folder / "llama",
        "gpt_oss": toy_gpt_oss.write(folder / "gpt_oss", toy_gpt_oss.make("hf", "bf16")),
        "packed": toy_gpt_oss.write(folder / "packed", toy_gpt_oss.make("hf", "mxfp4")),
    }


def planned(source: Path, *args: str) -> Any:
    return plan_run(compose_run([f"model.source={source}", "flow=convert", *args]), source)


@cache
def option(source: Path, name: str, *args: str) -> Any:
    """The stage that `export=NAME` is."""
    return compose_run([f"model.source={source}", "flow=convert", f"export={name}", *args]).stages["export"]


CHOICES = [
    ("llama", ["quant=none"], "hf", "plain values"),
    ("llama", ["quant=int4"], "compressed_tensors", "int4/128/bf16, int4/64/bf16, int4/32/bf16"),
    ("llama", ["quant=int8"], "compressed_tensors", "int8/row/f32"),
    ("llama", ["quant=fp8_e4m3"], "compressed_tensors", "e4m3/tensor/f32"),
    ("llama", ["quant=mxfp4"], "compressed_tensors", "e2m1/32/e8m0"),
    ("llama", ["quant=mxfp6_e2m3"], "compressed_tensors", "e2m3/32/e8m0"),
    ("llama", ["quant=mxfp8_e4m3"], "compressed_tensors", "e4m3/32/e8m0"),
    ("llama", ["quant=nvfp4"], "compressed_tensors", "e2m1/16/e4m3/inverse_f32"),
    ("llama", ["quant=nvfp4", "quant.second=f32"], "modelopt", "e2m1/16/e4m3/f32"),
    ("llama", ["quant=nf4", MLP], "bitsandbytes", "nf4/64/f32"),
    ("llama", ["quant=q8_0"], "gguf", "int8/32/f16"),
    ("llama", ["quant=q4_0"], "gguf", "int4/32/f16, int8/32/f16"),
    ("llama", ["quant=q4_1"], "gguf", "uint4/32/f16/zero:min_f16, int8/32/f16"),
    ("llama", ["quant=q8_0", "model.rules=[{role: mlp, to: quant}, {role: attention, to: mxfp4}]"], "gguf",
     "int8/32/f16, e2m1/32/e8m0"),
    ("llama", ["quant=q8_0", "model.rules=[{role: mlp, to: quant}, {role: attention, to: int4}]",
               "model.extra_rules=[{role: embedding, to: keep}]"], "compressed_tensors",
     "int8/32/f16, int4/128/bf16, int4/32/bf16"),
    ("gpt_oss", ["quant=none"], "hf", "plain values"),
    ("gpt_oss", ["quant=mxfp4"], "hf", "e2m1/32/e8m0"),
    ("gpt_oss", ["quant=nvfp4"], "compressed_tensors", "e2m1/16/e4m3/inverse_f32"),
    ("gpt_oss", ["quant=int8"], "compressed_tensors", "int8/row/f32"),
    ("gpt_oss", ["quant=q8_0"], "gguf", "int8/32/f16"),
    ("gpt_oss", ["quant=mxfp4", "model.rules=[{role: experts, to: quant}, {role: attention, to: int8}]"],
     "compressed_tensors", "e2m1/32/e8m0, int8/row/f32"),
    ("packed", ["flow=transcode", "quant=none"], "hf", "e2m1/32/e8m0"),
    ("gpt_oss", ["quant=mxint8", "export.dtype=bf16"], "hf", "plain values"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "how", "name", "what"), CHOICES, ids=[f"{c[0]} {' '.join(c[1])}" for c in CHOICES])
@pytest.mark.brief(each=lambda call: (call["model"], call["name"]))
def test_the_first_that_holds_everything_is_chosen(
    model: str, how: list[str], name: str, what: str, sources: dict[str, Path]
) -> None:
    """And what is written is, to the byte of every header, what asking for it by name writes."""
    run = compose_run([f"model.source={sources[model]}", "flow=convert", *how])
    by_name = option(sources[model], name, *(o for o in how if o.startswith(("export.", "flow="))))
    plan = plan_run(run, sources[model])
    asked = plan_run(replace(run, stages={**run.stages, "export": by_name}), sources[model])
    assert not plan.problems
    work, same = plan.works["export"], asked.works["export"]
    assert work.chosen.partition(" (")[0] == f"{name}, chosen for {what}"
    ours, named = ({n: b for n, b in w.small_files.items() if n != MARKER} for w in (work, same))
    assert (work.layout, work.binding, ours) == (same.layout, same.binding, named)
    assert same.chosen == ""


@pytest.mark.parametrize("quant", ["q4_0", "q8_0", "q4_0 tied"])
def test_an_embedding_is_packed_where_readers_take_it(quant: str, sources: dict[str, Path]) -> None:
    """By the rules of quant= itself; a tied one neither as an embedding nor as a head."""
    name, *tied = quant.split()
    for export, packs in (("gguf", True), ("compressed_tensors", False)):
        run = compose_run([f"model.source={sources['llama']}", "flow=convert", f"quant={name}", f"export={export}"])
        quantize: Any = run.stages["quantize"]
        specs = {n: TensorSpec(x.shape, "BF16") for n, x in toy_llama.weights().items()}
        found, problems = assigned(
            quantize.rules, quantize.roles, {"quant": quantize.method, **quantize.methods}, specs, again=False,
            tied=bool(tied),
        )  # fmt: skip
        assert not problems
        assert ("model.embed_tokens.weight" in found) == packs


@pytest.mark.parametrize("quant", ["fp8_e5m2", "mxint8"])
def test_where_nothing_can_hold_it_orbax_is_named(quant: str, sources: dict[str, Path]) -> None:
    [problem] = planned(sources["llama"], f"quant={quant}").problems
    assert problem.where == "export"
    first, *reasons = problem.message.splitlines()
    assert first.startswith("nothing that export=auto chooses from holds ")
    assert first.endswith("; export=orbax can")
    assert [r.strip().partition(":")[0] for r in reasons] == [*PREFERRED]
    assert not planned(sources["llama"], f"quant={quant}", "export=orbax").problems


def test_what_was_asked_for_and_cannot_be_is_one_problem_that_names_what_can(sources: dict[str, Path]) -> None:
    [problem] = planned(sources["llama"], "quant=int4", "export=hf").problems
    said = problem.message.splitlines()
    assert said[0] == "export=hf cannot hold this; export=compressed_tensors, export=orbax can"
    assert said[1].startswith("    model.layers.*.mlp.down_proj.weight (×3): is quantized (int4/64/bf16)")
    assert [line.partition(" is quantized ")[2].partition(";")[0] for line in said[1:]] == [
        "(int4/64/bf16)",
        "(int4/128/bf16)",
        "(int4/32/bf16)",
    ]
    [problem] = planned(sources["gpt_oss"], "quant=none", "export=modelopt").problems
    assert "; export=hf, export=gguf, export=original, export=orbax can" in problem.message


def test_what_no_option_can_hold_keeps_its_own_reasons(sources: dict[str, Path]) -> None:
    """Two vectors are no Llama, and that is not the fault of the choice."""
    stage = compose_run(["model=gpt_oss", "export=gguf"]).stages["export"]
    only = replace(stage, options={"gguf": stage.options["gguf"]}, prefer=())
    store = MemoryStore({"a": np.zeros(2, np.float32), "b": np.zeros(3, np.float32)})
    with pytest.raises(PlanError) as why:
        only.run(Context(sources["llama"]), Checkpoint(store, toy_llama.CONFIG))
    assert {p.where for p in why.value.problems} == {"config.json"}


def test_sizes_of_files_are_the_chosen_options_unless_given(sources: dict[str, Path]) -> None:
    def files(*args: str) -> list[str]:
        return [f.name for f in planned(sources["llama"], *args).works["export"].layout.files]

    assert files("quant=q8_0") == ["model.gguf"]
    assert len(files("quant=q8_0", "export.max_shard_size=100KB")) > 1
    assert len(files("quant=int8", "export.max_shard_size=100KB")) > 1
    assert files("quant=int8", "export.max_shard_size=null") == ["model.safetensors"]


@pytest.mark.parametrize(("given", "said"), [
    ({"dialect": None}, "dialect and container are chosen together"),
    ({"dialect": None, "container": None, "prefer": ()}, "prefer says which options are asked"),
    ({"prefer": ("hff",)}, "prefer names 'hff'; did you mean 'hf'"),
])  # fmt: skip
def test_choices_that_make_no_sense(given: dict[str, Any], said: str) -> None:
    stage = compose_run(["model=gpt_oss", "export=hf"]).stages["export"]
    with pytest.raises(Exception, match=said):
        replace(stage, **given)


def test_a_format_is_asked_first_for_what_it_brought() -> None:
    """Q8_0 is a scheme that compressed-tensors could hold; its readers are llama.cpp's."""
    specs = {"a.weight": TensorSpec((64, 64), "BF16", Scheme("int8", 32, "f16"))}
    assert CompressedTensors().encode(specs, {})
    assert specs["a.weight"].scheme in GgufDialect.own
    assert MXFP4 not in GgufDialect.own

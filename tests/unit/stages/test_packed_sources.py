"""Without a quantization what is packed stays packed: in a conversion, and for a model; where it cannot, it is said."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pipeline.api import compose_run, run
from pipeline.planning.memory import plan_run
from pipeline.reporting import console, manifest, tables
from pipeline.rules import Rule
from pipeline.stage import Checkpoint, Context
from pipeline.testing.memory import checkpoint, same
from plugins.quant.none import Unquantized
from stages.quantize import Quantize
from tests.cases import my_llama
from tests.cases.mx import mx_method

X = np.ones((4, 64), ml_dtypes.bfloat16)
KEEP = Unquantized(packed="keep")


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama in q4_0, its head in q8_0, its embedding packed as well."""
    folder = tmp_path_factory.mktemp("packed")
    my_llama.write(folder)
    made = [f"model.source={folder}/my-llama", "flow=convert", "quant=q4_0", f"paths.run={folder}/run"]
    run([*made, "progress=false"])
    return folder / "run" / "model" / "model.gguf"


def planned(source: Path, *args: str) -> Any:
    return plan_run(compose_run([f"model.source={source}", "flow=convert", *args]), source.parent / "nowhere")


def encodings(plan: Any) -> set[str]:
    return {spec.encoding for spec in plan.works["export"].store.specs.values()}


def quantized(source: Checkpoint, *rules: Rule, **more: Any) -> Checkpoint:
    return Quantize(KEEP, rules, **more).run(Context(Path()), source)


def test_nothing_is_unpacked_and_what_a_rule_keeps_must_be_held() -> None:
    packed = mx_method().encode(X)
    source = checkpoint({"a": packed, "b": packed, "c": packed, "d": X})
    found = quantized(source, Rule("quant", "a"), Rule("keep", "b"), Rule("none", "c"), methods={"none": Unquantized()})
    assert {n: s.scheme is None for n, s in found.store.specs.items()} == {"a": False, "b": False, "c": True, "d": True}
    assert found.may_unpack == {"a"}
    assert same(found.store.read("a"), packed)


@pytest.mark.parametrize("to", ["auto", "gguf", "orbax"])
def test_a_container_that_holds_the_numbers_keeps_them(to: str, gguf: Path) -> None:
    plan = planned(gguf, f"export={to}")
    assert not plan.problems
    assert encodings(plan) >= {"int4/32/f16", "int8/32/f16"}
    assert not any("unpacked" in text for text in manifest.chosen(plan).values())


def test_what_a_container_cannot_hold_is_unpacked_with_a_word(gguf: Path, monkeypatch: Any, capsys: Any) -> None:
    plan = planned(gguf, "export=hf")
    assert not plan.problems
    assert encodings(plan) == {"BF16"}
    said = manifest.chosen(plan)["export"]
    assert "unpacked, 994.0 KiB in the source, 2.6 MiB as bf16: export=hf does not hold that packed" in said
    assert said.endswith("export=gguf, export=orbax can")
    monkeypatch.setenv("COLUMNS", "200")
    console.out(*console.plan_tables(plan))
    assert "16.000 bits a weight, 2.63× larger than the source" in capsys.readouterr().out


def test_only_that_is_unpacked_which_no_reader_loads(gguf: Path) -> None:
    plan = planned(gguf, "export=compressed_tensors")
    specs = plan.works["export"].store.specs
    assert [n for n, s in specs.items() if s.scheme is None and "norm" not in n] == ["model.embed_tokens.weight"]
    assert "model.embed_tokens.weight (int4/32/f16) unpacked" in manifest.chosen(plan)["export"]
    asked = planned(gguf, "export=compressed_tensors", "model.extra_rules=[{role: embedding, to: keep}]")
    assert "--rule model.embed_tokens.weight=none" in str(asked.problems[0])


@pytest.mark.parametrize("asked", [["quant=q4_0"], ["flow=transcode"]])
def test_what_was_asked_for_is_not_unpacked(asked: list[str], gguf: Path) -> None:
    [problem] = planned(gguf, *asked, "export=hf", "model.rules=[{role: mlp, to: quant}]").problems
    assert "export=hf cannot hold this" in problem.message


@pytest.mark.parametrize("to", ["bitsandbytes", "modelopt"])
def test_an_export_of_codes_alone_says_what_it_had_unpacked(to: str, gguf: Path) -> None:
    [problem] = planned(gguf, f"export={to}").problems
    assert problem.where == "export"
    assert f"unpacked, 994.0 KiB in the source, 2.6 MiB as bf16: export={to} does not hold that packed" in str(problem)
    assert "plain values alone it does not hold either" in str(problem)
    assert "allow_requantize=true" in str(problem)
    again = planned(gguf, f"export={to}", "quant=nf4" if to == "bitsandbytes" else "quant=nvfp4")
    assert "packed already" in str(again.problems[0])


def test_none_unpacks_all(gguf: Path) -> None:
    assert encodings(planned(gguf, "quant=none")) == {"BF16"}


def test_the_values_are_those_and_the_report_says_how_they_grew(gguf: Path, tmp_path: Path) -> None:
    given = [f"model.source={gguf}", "flow=convert", "progress=false"]
    report = run([*given, "export=hf", f"paths.run={tmp_path}/hf"])
    again = run([*given, "quant=none", "export=hf", f"paths.run={tmp_path}/none"])
    files = [(o["path"].rpartition("/")[2], o["xxh3_128"]) for o in report.outputs if o["path"].endswith("safetensors")]
    assert files == [(o["path"].rpartition("/")[2], o["xxh3_128"]) for o in again.outputs if "safetensors" in o["path"]]
    assert "in the source, 2.6 MiB as bf16 → 2.6 MiB (2.63× larger than the source" in str(tables.tables(report)[-1])
    assert report.encodings == {}
    back = run([*given, f"paths.run={tmp_path}/gguf"])
    assert "as large as the source" in str(tables.tables(back)[-1])
    assert [*back.encodings] == ["int4/32/f16", "int8/32/f16"]

"""`flow=bench_quality`: cells of ours and of others in one table, and the methods of others as they were published."""

import json
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.bench import against, quality
from pipeline.bench.quality import KL, STORED, Given
from pipeline.config.measuring import of_quality
from pipeline.errors import ConfigError, PlanError, StageError
from pipeline.records import schemas
from pipeline.stage import Checkpoint
from pipeline.tensors.spec import TensorSpec
from plugins.bench.llm_compressor import PACKAGE, LlmCompressor
from plugins.bench.restated import Published, awq, gptq
from plugins.bench.roundings import LlamaQuantize
from plugins.quant.blockwise import Blockwise
from plugins.quant.gptq import Gptq
from tests.cases import two_layers
from tests.cases.memory_store import MemoryStore
from tests.unit.quant.test_calibrated import inputs, matrix, statistics

INT4 = Blockwise(element="int4", block_elems=128, scale="f16", scale_rule="half_range")
ROOT = Path(pipeline.__file__).parents[1]
PEERS = ("llama_cpp_q4_k_m", "llama_cpp_q4_k_m_imatrix", "llama_cpp_q3_k_m_imatrix", "awq_as_published")
LLM_COMPRESSOR = ("gptq", "gptq_g64_bf16", "gptq_g64", "awq", "gptq_w3")
SMALL = (
    "+model=gpt_oss", "flow=bench_quality", "calibrate.windows.window=64", "calibrate.windows.tokens=256",
    "evaluate.windows.window=64", "evaluate.windows.tokens=128", "~bench.more.auto", "~bench.more.auto_gptq",
    *(f"~stages.bench_quality.peers.{name}" for name in (*PEERS, *(f"llm_compressor_{n}" for n in LLM_COMPRESSOR[1:]))),
)  # fmt: skip


def found(bits: float, kl: float, **more: Any) -> dict[str, Any]:
    return {"bits": bits, "whole": bits + 1, "kl": kl, "perplexity": 20.0, "top1": 0.9, **more}


def rows() -> list[dict[str, Any]]:
    return [
        quality.row("gptq", "int4", found(4.125, 0.02), 0, theirs=False),
        quality.row("none", "mxfp4", found(4.25, 0.01), 0, theirs=False),
        quality.row("as named", "auto", found(4.2, 0.03, predicted=0.033), 0, theirs=False),
        quality.row("published", "others", found(4.125, 0.04), 0, theirs=True),
        quality.row("larger", "others", found(4.3, 0.005), 0, theirs=True),
        quality.row("smaller", "others", found(3.0, 0.5), 0, theirs=True),
        quality.row("rotate", "int4", {"refused": "norms let no rotation through"}, 0, theirs=False),
    ]


def test_others_stand_beside_the_best_of_ours_in_no_more_bits() -> None:
    all_, beside, chosen, left = quality.tables(rows(), [], None)
    assert [row[0:3:2] for row in all_.rows] == [
        ("others", "3.000"), ("int4", "4.125"), ("others", "4.125"), ("auto", "4.200"), ("mxfp4", "4.250"),
        ("others", "4.300"),
    ]  # fmt: skip
    assert {row[1]: row[4:] for row in beside.rows} == {
        "published": ("int4", "gptq", "4.125", "0.02000", "0.50 ×"),
        "larger": ("mxfp4", "none", "4.250", "0.01000", "2.00 ×"),
        "smaller": ("–",) * 5,
    }
    assert chosen.rows == (("auto", "as named", "4.200", "0.03000", "0.03300", "+10%"),)
    assert left.rows == (("rotate", "int4", "unsupported", "norms let no rotation through"),)


def test_every_cell_that_was_measured_is_a_figure() -> None:
    figures = quality.figures(rows())
    assert figures["int4, gptq"].value == 0.02
    assert len(figures) == 6, "what was refused is none"
    assert rows()[0]["metrics"][STORED]["value"] == 4.125
    assert rows()[0]["metrics"][KL]["better"] == "lower", "--against says what got worse"


def test_what_is_typed_goes_to_cells_but_for_how_they_round() -> None:
    typed = ["+model=gpt_oss", "model.source=x", "calibrate=awq", "calibrate.texts=[a]", "bench.rounds=1",
             "evaluate.texts=[b]", "paths.outputs=o", "seed=1"]  # fmt: skip
    assert of_quality(typed) == ["+model=gpt_oss", "calibrate.texts=[a]", "evaluate.texts=[b]", "seed=1"]


def by_hand(w: Any) -> Any:
    scale = (np.abs(w.reshape(len(w), -1, 64)).max(-1) / 7.5).astype(np.float16).astype(np.float64).repeat(64, 1)
    return np.clip(np.rint(w / scale), -8, 7) * scale


def test_gptq_as_published_of_inputs_that_do_not_go_together_is_plain_rounding() -> None:
    w = matrix()  # 192 columns: groups of 64, as 128 does not divide them
    np.testing.assert_array_equal(gptq(w.astype(np.float64), np.eye(192)), by_hand(w.astype(np.float64)))


@pytest.mark.parametrize("dead", [False, True])
def test_gptq_as_published_makes_what_ours_makes_under_its_settings(dead: bool) -> None:
    w, x = matrix(n=256), inputs(256)
    x[:, 7] *= not dead  # an input that is always 0
    ours = Gptq().calibrated(INT4)
    theirs = gptq(w.astype(np.float64), (x.T @ x / len(x)).astype(np.float64))
    np.testing.assert_allclose(ours.decode(ours.encode(w, statistics=statistics(x)), "F32"), theirs, rtol=1e-6)


def test_awq_as_published_scales_channels_that_are_multiplied_by_much() -> None:
    w, x = matrix(n=256).astype(np.float64), inputs(256)
    x[:, :3] *= 20
    hessian = (x.T @ x / len(x)).astype(np.float64)
    (plain,) = awq([w], np.eye(256))
    first, second = awq([w, 2 * w], hessian)
    np.testing.assert_allclose(second, 2 * first, rtol=2e-3, err_msg="what has the same inputs has the same factors")

    def lost(made: Any) -> float:
        return float(np.sum((made - w) * ((made - w) @ hessian)))

    assert lost(first) < 0.7 * lost(plain)


@pytest.mark.parametrize(("method", "bits"), [("gptq", 4 + 16 / 64), ("awq", 4 + 20 / 64)])
def test_what_is_published_is_made_of_every_expert(method: Any, bits: float) -> None:
    """And of what shares inputs together, in as many bits as codes, scales and zero points take."""
    names = [f"model.layers.0.mlp.experts.{part}_proj" for part in ("gate", "up")]
    values = {n: np.stack([matrix(seed=k + s) for s in (0, 1)]) for k, n in enumerate(names)}
    xs = [inputs(192, seed=s) for s in (5, 6)]
    store = MemoryStore(values)
    known = SimpleNamespace(hessians=True, of=lambda n: SimpleNamespace(hessian=lambda e: xs[e].T @ xs[e] / 400))
    checkpoint: Any = replace(Checkpoint(store, {}), statistics=known)
    rounder = Published(method)
    assert not rounder.why_not(checkpoint)
    made = rounder.rounded(checkpoint, names, Given(None, []), Path())
    assert {n: 8 * b / values[n].size for n, b in made.nbytes.items()} == dict.fromkeys(names, bits)
    whole = made.checkpoint.store.read(names[1], (slice(1, 2), slice(0, 24), slice(0, 192)))[0]
    h = (xs[1].T @ xs[1] / 400).astype(np.float64)
    parts = [values[n][1].astype(np.float64) for n in names]
    wanted = gptq(parts[1], h) if method == "gptq" else awq(parts, h)[1]
    np.testing.assert_array_equal(whole, wanted.astype(np.float32))
    with pytest.raises(StageError, match=r"experts\.gate_proj: nothing was seen"):
        rounder.rounded(
            replace(checkpoint, statistics=SimpleNamespace(of=lambda n: None)), names, Given(None, []), Path()
        )


def test_others_say_what_they_cannot() -> None:
    llama, plain = Checkpoint(MemoryStore({}), {"model_type": "llama"}), LlamaQuantize("q4_k_m")
    assert plain.why_not(llama) == ""
    assert plain.why_not(replace(llama, config={"model_type": "gpt_oss"})) == ""
    assert "no names of GGUF are known of bert" in plain.why_not(replace(llama, config={"model_type": "bert"}))
    assert "of mixes it has" in LlamaQuantize("q9").why_not(llama)
    assert "no statistics" in LlamaQuantize("q4_k_m", importance=True).why_not(llama)
    assert "bench_quality has calibrate=gptq" in Published("gptq").why_not(llama)


def a_python(folder: Path, program: str) -> str:
    """One that does `program` whatever script it is given, of which `settings` are the settings."""
    script, python = folder / "program.py", folder / "python"
    script.write_text(f"import json, sys\nif '-c' in sys.argv: sys.exit(print('1.0'))\n"
                      f"settings = json.load(open(sys.argv[-1]))\n{program}\n")  # fmt: skip
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    python.chmod(0o755)
    return str(python)


NAMES = ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.experts.gate_up_proj")


def test_llm_compressor_is_told_what_to_round(tmp_path: Path) -> None:
    """Every expert is a module there, and rows of 192 columns have groups of 64."""
    python = a_python(tmp_path, "json.dump(settings, open(settings['out'], 'w'))")
    specs = {NAMES[0]: TensorSpec((16, 256), "F32"), NAMES[1]: TensorSpec((4, 64, 192), "F32")}
    LlmCompressor("awq", python, bits=3, symmetric=False).compress(
        Path("model"), tmp_path / "out", [[1, 2, 3], [4, 5, 6]], specs, tmp_path
    )
    told = json.loads((tmp_path / "out").read_text())
    expert = r"re:.*model\.layers\.0\.mlp\.experts\.\d+\.(gate|up)_proj$"
    assert told["groups"] == {"128": ["model.layers.0.self_attn.q_proj"], "64": [expert]}
    assert (told["model"], told["method"], told["bits"], told["symmetric"]) == ("model", "awq", 3, False)
    np.testing.assert_array_equal(np.load(told["rows"]), [[1, 2, 3], [4, 5, 6]])


def test_what_llm_compressor_fails_at_is_said(tmp_path: Path) -> None:
    python = a_python(tmp_path, "sys.exit('no such module')")
    with pytest.raises(StageError, match="llm-compressor: exit code 1: no such module"):
        LlmCompressor("gptq", python).compress(tmp_path, tmp_path / "out", [[1]], {}, tmp_path)


@pytest.mark.skipif(find_spec(PACKAGE) is not None, reason="this Python has it")
def test_a_python_without_llm_compressor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"bench.llm_compressor='.*': has no llmcompressor .*allowed: the program"):
        LlmCompressor("gptq", sys.executable)
    with pytest.raises(ConfigError, match=r"nowhere': No such file or directory; allowed"):
        LlmCompressor("gptq", str(tmp_path / "nowhere"))
    assert [*LlmCompressor("gptq").needs] == [PACKAGE]


def benched(folder: Path) -> Any:
    """Of cells of ours and of others; llm-compressor is a program that rounds as ours do."""
    ours = ["quant=int4", "quant.scale=f32", "export=compressed_tensors"]
    rules = "model.rules=[{role: attention, to: quant}, {role: experts, to: quant}]"
    program = (
        f"import numpy\nassert numpy.load(settings['rows']).shape == (8, 64)\nsys.path.insert(0, {str(ROOT)!r})\n"
        f"import pipeline\npipeline.run(['+model=gpt_oss', 'flow=convert', 'stages.decode.dtype=keep', *{ours}, "
        f"{rules!r}, 'model.source=' + json.dumps(settings['model']), 'export.path=' + json.dumps(settings['out']), "
        f"'paths.outputs={folder / 'fake'}'], progress=False)"
    )
    cells = ["bench.quants=[int4]", "bench.calibrates=[none]", '+bench.more.plain=["quant=keep"]']
    return pipeline.run([
        *SMALL, *cells, f"model.source={two_layers.folder()}", f"bench.llm_compressor={a_python(folder, program)}",
        f"paths.outputs={folder / 'outputs'}",
    ], progress=False)  # fmt: skip


def test_cells_of_ours_and_of_others_are_rows(tmp_path: Path) -> None:
    """A program that rounds as ours do loses what ours lose, in as many bits; it is given the model and token ids."""
    report = benched(tmp_path)
    record = schemas.read("benchmark", Path(report.run) / against.NAME)
    rows = {(row["quant"], row["engine"]): row for row in record["rows"]}
    ours, theirs = rows["int4", "none"], rows["others", "gptq_as_published"]
    assert ours["metrics"][STORED]["value"] == theirs["metrics"][STORED]["value"], "groups and scales are of one size"
    assert 4.2 < ours["metrics"][STORED]["value"] < 4.6
    assert 0 < theirs["metrics"][KL]["value"] < 1
    assert 0 < ours["metrics"][KL]["value"] < 1
    refused = rows["plain", "as named"]
    assert (refused["state"], "quantizes nothing" in refused["why"]) == ("unsupported", True)
    assert report.exit_code == 0
    assert not (Path(report.run) / "rounded").exists(), "what was rounded is no result"
    asked = rows["others", "llm_compressor_gptq"]
    assert asked["state"] == "measured", asked["why"]
    assert asked["metrics"][KL]["value"] == pytest.approx(ours["metrics"][KL]["value"], rel=0.05)
    assert asked["metrics"][STORED]["value"] > ours["metrics"][STORED]["value"], "scales in fp32"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("bench.rounds=2", "bench.rounds=2: the same cell loses the same; 1 is allowed"),
        ("bench.quants=[]", "no cell of ours is asked for"),
        ("evaluate.texts=[nowhere.txt]", "evaluate.texts: nowhere.txt"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(PlanError, match=said) as caught:
        pipeline.plan([*SMALL, more, f"paths.outputs={tmp_path}"])
    assert caught.value.exit_code == ConfigError.exit_code


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("bench.rounded=[mpl]", r"bench.rounded: 'mpl': no such role; did you mean 'mlp'\?"),
        ("bench.rounded=[mlp]", r"bench.rounded: \[mlp\]: no tensor of the model has such a role; it has attention"),
    ],
)
def test_what_the_model_has_none_of_is_said(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        pipeline.run([*SMALL, more, f"paths.outputs={tmp_path}"], progress=False)

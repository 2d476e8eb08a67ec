"""Every number format into every export, from the command line: what fits comes back, what does not is refused.

The command line runs in this process (a process of its own costs more than most of these runs); what other programs
make of the files is tested with each dialect.
"""

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from pipeline import __main__ as command_line
from pipeline.api import compose_run
from pipeline.config.spine import Paths, RunConfig
from pipeline.events import Events
from pipeline.planning.memory import plan_run
from pipeline.running.runner import execute
from pipeline.running.target import MARKER
from stages.export import DTYPES
from stages.export_work import ExportWork
from tests.cases import model_runs, toy_gpt_oss, toy_llama

OPTIONS = {"none", *model_runs.QUANTIZING}
# Quant options and what else is typed. Blocks of 64 divide no row of the toy gpt-oss's down_proj.
QUANTS: dict[str, tuple[str, ...]] = {
    **{name: (f"quant={name}",) for name in sorted(OPTIONS)},
    "nf4": ("quant=nf4", "quant.block_elems=32"),
    "nf4 double": ("quant=nf4", "quant.block_elems=32", "quant.scale=dynamic8", "quant.second=dynamic8"),
    "nvfp4": ("quant=nvfp4", "quant.second=f32"),
    "nvfp4 inverse": ("quant=nvfp4", "quant.second=inverse_f32"),
    "uint4": ("quant=int4", "quant.element=uint4", "quant.zero_point=int", "quant.scale=bf16"),
    "fp8 rows": ("quant=fp8_e4m3", "quant.block_rows=1"),
    "fp8 tiles": ("quant=fp8_e4m3", "quant.block_rows=32", "quant.block_elems=32"),
}
INTEGERS = ("int2", "int3", "int4", "int8", "uint4")  # and q4_0 and q8_0, whose embedding is to be plain there
COMPRESSED = ("mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "nvfp4 inverse", "fp8_e4m3", "fp8 rows", *INTEGERS)
GGUF = ("none", "mxfp4", "q4_0", "q4_1", "q8_0")
# What each export keeps in the encoding it comes in.
OF_GPT_OSS: dict[str, tuple[str, ...]] = {
    "hf": ("none", "mxfp4"),
    "original": ("none", "mxfp4"),
    "gguf": GGUF,
    "compressed_tensors": COMPRESSED,
    "modelopt": ("nvfp4",),
    "bitsandbytes": ("nf4",),
}
OF_LLAMA: dict[str, tuple[str, ...]] = {
    "hf": ("none",),
    "gguf": ("none", "q4_1", "nvfp4"),  # the rest is as with gpt-oss
    "compressed_tensors": ("int3", "nvfp4 inverse", "fp8 tiles"),
    "modelopt": ("nvfp4",),
    "bitsandbytes": ("nf4", "nf4 double"),
}
REASONS = {
    "hf": "gpt-oss knows no packing but MXFP4",
    "gguf": "a GGUF file can be written with",
    "compressed_tensors": "compressed-tensors has no format for it",
    "modelopt": "ModelOpt checkpoints are written as NVFP4",
    "bitsandbytes": "bitsandbytes checkpoints are NF4",
}
NOTHING = "no tensor is quantized"
PARTICULAR = {
    ("nvfp4", "gguf"): "NVFP4 has blocks of 64 elements",
    ("nvfp4", "compressed_tensors"): "quantize with quant.second=inverse_f32, or export=modelopt",
    ("nvfp4 inverse", "modelopt"): "quantize with quant.second=f32, or export=compressed_tensors",
    ("nf4 double", "bitsandbytes"): "the scales of all experts are coded together",
    ("nf4 double", "compressed_tensors"): "the scales of all experts are coded together",
    ("fp8 tiles", "compressed_tensors"): "gate and up rows, which are stored apart",
    ("fp8_e4m3", "modelopt"): "comes with calibrated scales of inputs",
}
# Planned for another export, which packs the embedding too; asked for by name, theirs does not.
EMBEDDED = dict.fromkeys(("q4_0", "q8_0"), "model.embed_tokens is no linear module: no reader loads it so")
Said = tuple[int, str, str]


@dataclass(frozen=True)
class Toy:
    """A checkpoint on disk and what to type for it."""

    folder: Path
    model: str
    more: tuple[str, ...] = ()

    @property
    def source(self) -> Path:
        return self.folder / "source"

    def typed(self, name: str, *args: str) -> tuple[str, ...]:
        where = f"paths.run={self.folder / 'runs' / name}"
        return (f"+model={self.model}", f"model.source={self.source}", "flow=convert", *self.more, where, *args)


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run a command in this process; its exit code, and what it wrote to stdout and stderr."""

    # Hydra sets logging up anew, and closes all handlers first. absl's, which came with Orbax in some other test, then
    # closes the stream it began with: what pytest captures stderr in.
    if (absl := sys.modules.get("absl.logging")) is not None:
        absl.get_absl_handler().python_handler.stream = sys.__stderr__

    def run(*args: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["pipeline", *args, "progress=false"])
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            command_line.main()
        return (int(end.value.code or 0), *capfd.readouterr())

    return run


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    folder = tmp_path_factory.mktemp("gpt_oss")
    toy_gpt_oss.write(folder / "source", toy_gpt_oss.make("hf", "bf16"))
    return Toy(folder, "gpt_oss")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    folder = tmp_path_factory.mktemp("llama")
    (folder / "source").mkdir()
    save_file(toy_llama.weights(), folder / "source" / "model.safetensors")
    (folder / "source" / "config.json").write_text(json.dumps(toy_llama.CONFIG))
    # Rows of 96, as o_proj has them, are no multiple of GGUF's 64.
    return Toy(folder, "smollm2", ("model.rules=[{role: mlp, to: quant}, {match: '*', to: keep}]",))


def holds(table: dict[str, tuple[str, ...]]) -> list[Any]:
    pairs = {quant: [export for export, quants in table.items() if quant in quants] for quant in QUANTS}
    return [pytest.param(quant, exports, id=quant) for quant, exports in pairs.items() if exports]


@pytest.fixture(scope="module")
def stages() -> dict[str, Any]:
    """The export stage of every option."""
    return {name: compose_run(["+model=gpt_oss", f"export={name}"]).stages["export"] for name in OF_GPT_OSS}


@cache
def values(toy: Toy, quant: str) -> RunConfig:
    """The values of the checkpoint, quantized, as fp32.

    An export of values in fp32 keeps wide norms as they are, unless told to decode them to bf16 as the others do.
    """
    how = ("export=numpy", "export.dtype=fp32", "stages.decode.dtype=bf16")
    return compose_run([*toy.typed(f"{quant} direct", *QUANTS[quant], *how), f"paths.outputs={toy.folder}"])


@pytest.fixture(scope="module")
def verify() -> RunConfig:
    return compose_run(["flow=verify", "a=/a", "b=/b"])


def reads_back_as_planned(run: RunConfig, export: Any, written: Path) -> None:
    """Its tensors are those that the plan promised to whoever reads the export in place of the checkpoint."""
    [work] = plan_run(replace(run, stages={**run.stages, "export": export}), written).works.values()
    assert isinstance(work, ExportWork)
    assert work.read_back is not None
    assert work.read_back.opener is not None
    assert not work.read_back.why_not
    assert dict(work.read_back.opener(written / "model").store.specs) == dict(work.read_back.specs)


def same_model(verify: RunConfig, a: Path, b: Path, where: Path) -> bool:
    """What `flow=verify` finds."""
    places = {"a": replace(verify.stages["a"], source=str(a)), "b": replace(verify.stages["b"], source=str(b))}
    outputs = replace(verify.spine, paths=Paths(outputs=str(where.parent), run=str(where)))
    report = execute(replace(verify, stages={**verify.stages, **places}, spine=outputs), where, [], Events())
    assert (report.exit_code == 0) == report.results["verify"]["same"]
    return report.exit_code == 0


@pytest.fixture
def kept(say: Callable[..., Said], stages: dict[str, Any], verify: RunConfig) -> Callable[..., None]:
    """Values exported directly, as fp32, equal those of every export that keeps the encoding, when read back."""

    def kept(toy: Toy, quant: str, exports: list[str]) -> None:
        run, direct = values(toy, quant), toy.folder / "runs" / f"{quant} direct"
        execute(run, direct, [], Events())
        for export in exports:
            code, _, err = say(*toy.typed(f"{quant} {export}", *QUANTS[quant], f"export={export}"))
            assert (code, err) == (0, ""), export
            written = toy.folder / "runs" / f"{quant} {export}"
            reads_back_as_planned(run, stages[export], written)
            assert same_model(
                verify, direct / "model", written / "model", written.with_name(f"{written.name} verified")
            )
            manifest = json.loads((written / "manifest.json").read_text())
            assert quant == "none" or manifest["nbytes_out"] < manifest["nbytes_in"]

    return kept


@pytest.mark.parametrize(("quant", "exports"), holds(OF_GPT_OSS))
@pytest.mark.brief("none", "q8_0", "nvfp4", "int4")  # MXFP4 is in every dialect below, and in test_end_to_end.py
def test_gpt_oss_comes_back(quant: str, exports: list[str], gpt_oss: Toy, kept: Callable[..., None]) -> None:
    kept(gpt_oss, quant, exports)


@pytest.mark.parametrize(("quant", "exports"), holds(OF_LLAMA))
@pytest.mark.brief("q4_1", "nf4 double", "fp8 tiles")
def test_llama_comes_back(quant: str, exports: list[str], llama: Toy, kept: Callable[..., None]) -> None:
    kept(llama, quant, exports)


def reason(quant: str, export: str) -> str:
    if export == "compressed_tensors" and quant in EMBEDDED:
        return EMBEDDED[quant]
    return NOTHING if quant == "none" else PARTICULAR.get((quant, export), REASONS[export])


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.brief("mxint8", "nvfp4", "nvfp4 inverse", "nf4 double", "fp8 tiles", "mxfp8_e5m2", "q8_0")
def test_the_plan_refuses_what_an_export_cannot_hold(
    quant: str, gpt_oss: Toy, stages: dict[str, Any], tmp_path: Path
) -> None:
    run = values(gpt_oss, quant)
    for export in REASONS:
        plan = plan_run(replace(run, stages={**run.stages, "export": stages[export]}), tmp_path)
        if quant in OF_GPT_OSS[export]:
            assert not plan.problems
        else:
            [problem] = plan.problems
            assert problem.where == "export"
            assert reason(quant, export) in problem.message, export
            assert "export=orbax" in problem.message
            assert quant == "none" or re.search(
                r"\*\.mlp\.experts\.(down_proj|gate_up_proj)|embed_tokens\.weight( and \d+ others|: is packed)",
                problem.message,
            )


@pytest.mark.parametrize(("quant", "export"), [*(("mxint8", e) for e in REASONS), *PARTICULAR])
@pytest.mark.brief(1)  # the plan says of each why
def test_what_cannot_be_held_is_not_begun(quant: str, export: str, gpt_oss: Toy, say: Callable[..., Said]) -> None:
    code, out, err = say(*gpt_oss.typed(f"{quant} not {export}", *QUANTS[quant], f"export={export}"))
    assert (code, out) == (3, "")
    assert reason(quant, export) in err
    assert re.search(r"model\.layers\.[2*]\.mlp\.experts\.", err)
    assert not (gpt_oss.folder / "runs" / f"{quant} not {export}").exists()


MXFP4_EXPORTS = ("hf", "original", "compressed_tensors", "gguf")


def transcoded(source: Path, target: Path, say: Callable[..., Said], *args: str) -> Said:
    where = (f"export.path={target}", f"paths.run={target.with_name(target.name + '-run')}")
    return say("+model=gpt_oss", f"model.source={source}", "flow=transcode", *where, *args)


def files(folder: Path) -> dict[str, bytes]:
    """All but the marker, which names the run."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != MARKER}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gpt-oss's MXFP4 with all 256 bytes among its codes, written by nothing of ours."""
    folder = tmp_path_factory.mktemp("packed")
    return toy_gpt_oss.write(folder / "source", toy_gpt_oss.make("hf", "mxfp4"))


def test_mxfp4_goes_from_every_dialect_to_every_other(
    packed: Path, tmp_path: Path, say: Callable[..., Said], thorough: bool
) -> None:
    """Whatever way it came, what is written is the same to the byte; but GGUF widens vectors, and they stay wide."""

    def same(folder: Path, how: str) -> None:
        code, out, err = say("flow=verify", f"a={packed}", f"b={folder}", f"paths.run={tmp_path / folder.name}-verify")
        assert code == 0, err
        assert f"the same model: all {3 * 17 + 3} tensors equal bit for bit, {how}" in out

    first = {export: tmp_path / export for export in MXFP4_EXPORTS}
    for export, target in first.items():
        assert transcoded(packed, target, say, f"export={export}")[0] == 0, export
        same(target, "" if export == "gguf" else "encodings and all")
    for turn, source in enumerate(MXFP4_EXPORTS[1:]):
        for export, target in first.items():
            again = tmp_path / f"{source}-to-{export}"
            if source == export or not (thorough or export == MXFP4_EXPORTS[turn]):
                continue
            assert transcoded(first[source], again, say, f"export={export}")[0] == 0
            if source == "gguf":
                same(again, "")
            else:
                found, want = files(again), files(target)
                assert found.keys() == want.keys(), again.name
                assert [n for n in want if found[n] != want[n]] == [], again.name


@pytest.mark.parametrize(("export", "given"), [("gguf", "stem=a/b"), ("gguf", "stem=''"), ("orbax", "chunk_nbytes=0")])
def test_containers_refuse_what_they_cannot_do(export: str, given: str, say: Callable[..., Said]) -> None:
    code, out, err = say("plan", "+model=gpt_oss", "flow=convert", f"export={export}", f"export.container.{given}")
    assert (code, out) == (2, "")
    assert err.startswith("error: export.container: ")
    assert "is needed" in err


ATTENTION = "model.rules=[{role: attention, to: quant}]"


@pytest.mark.parametrize(
    ("export", "how"),
    [("hf", ["quant=mxfp4"]), ("gguf", ["quant=mxfp4"]), ("compressed_tensors", ["quant=int8", ATTENTION])],
    ids=["hf", "gguf", "compressed-tensors"],
)
def test_bits_a_weight_are_those_of_the_file_in_plan_and_report(
    export: str, how: list[str], packed: Path, tmp_path: Path, say: Callable[..., Said]
) -> None:
    """Norms and biases that GGUF widens, and shapes that compressed-tensors writes beside integers, are weighed too."""
    typed = ["+model=gpt_oss", f"model.source={packed}", "flow=convert", f"export={export}", f"paths.run={tmp_path}"]
    planned, done = say("plan", *typed, *how), say(*typed, *how)
    assert (planned[0], done[0]) == (0, 0), planned[2] + done[2]
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    if export == "gguf":
        from gguf import GGUFReader

        reader = GGUFReader(tmp_path / "model" / "model.gguf")
        nbytes = sum(int(t.n_bytes) for t in reader.tensors)
    else:
        data = (tmp_path / "model" / "model.safetensors").read_bytes()
        nbytes = len(data) - 8 - int.from_bytes(data[:8], "little")
    assert manifest["nbytes_out"] == nbytes
    bits = f"{16 * nbytes / manifest['nbytes_bf16']:.3f} bits a weight"
    assert bits in planned[1]
    assert bits in done[1]


@pytest.mark.parametrize(("typed", "missing"), [
    (["flow=verify"], ["a: has no default; add a=…", "b: has no default; add b=…"]),
    (["flow=verify", "a=here"], ["b: has no default; add b=…"]),
    (["flow=transcode", "+model=llama"], ["model.source: has no default; add model.source=…"]),
])  # fmt: skip
def test_what_has_to_be_given_is_said_once(typed: list[str], missing: list[str], say: Callable[..., Said]) -> None:
    code, out, err = say(*typed)
    assert (code, out) == (2, "")
    said = [line.removeprefix("error: ").removeprefix("  - ") for line in err.splitlines()][-len(missing) :]
    assert [line.partition(", a folder or hf://")[0] for line in said] == missing  # and a family's checkpoints
    assert err.count("default") == len(missing)


def test_verify_says_of_nan_and_inf_what_they_are(tmp_path: Path, say: Callable[..., Said]) -> None:
    """They differ from every number, and from nothing that is the same; the verdict is the last line of the report."""
    toy = toy_gpt_oss.make("hf", "bf16")
    whole = toy_gpt_oss.write(tmp_path / "whole", toy)
    norm, router = "model.norm.weight", "model.layers.1.mlp.router.weight"
    toy.leaves[norm] = toy.leaves[norm].copy()
    toy.leaves[router] = toy.leaves[router].copy()
    toy.leaves[norm][3], toy.leaves[router][1, 2] = float("inf"), float("nan")
    broken = toy_gpt_oss.write(tmp_path / "broken", toy)
    for i, (a, b) in enumerate([(whole, broken), (broken, whole)]):
        code, out, err = say("flow=verify", f"a={a}", f"b={b}", f"paths.run={tmp_path / str(i)}")
        assert (code, err) == (7, "")
        assert "not the same model: of 54 shared tensors 2 differ" in out.splitlines()[-2]
        assert "exact" not in out
        assert "other values" in out
        assert "equal bit for bit" in out
        assert "recoded" not in out
        found = json.loads((tmp_path / str(i) / "manifest.json").read_text())["results"]["verify"]["differing"]
        assert [found[n]["max_abs"] for n in (norm, router)] == ["inf", "nan"]
    code, out, err = say("flow=verify", f"a={broken}", f"b={broken}", f"paths.run={tmp_path / 'same'}")
    assert (code, err) == (0, "")
    assert "the same model: all 54 tensors" in out.splitlines()[-2]
    other = shutil.copytree(broken, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.25, "transformers_version": "9"}))
    code, out, _ = say("flow=verify", f"a={broken}", f"b={other}", f"paths.run={tmp_path / 'settings'}")
    assert code == 7
    said = " ".join(out.split())
    assert "not the same model: all 54" in said
    assert "encodings and all; but config.json has another rms_norm_eps" in said
    near = {"rms_norm_eps": config["rms_norm_eps"] * (1 + 1e-8), "use_cache": "else", "transformers_version": "9"}
    (other / "config.json").write_text(json.dumps({**config, **near}))
    code, out, _ = say("flow=verify", f"a={broken}", f"b={other}", f"paths.run={tmp_path / 'near'}")
    assert code == 0, "what one file has as fp32 and another as text, and what no model computes with"


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_verify_says_what_is_only_rounded(dtype: str, tmp_path: Path, say: Callable[..., Said]) -> None:
    """Values that a packed source decodes to have more digits than a plain export of them keeps."""
    int4, rounded = tmp_path / "int4", tmp_path / "rounded"
    made = ("+model=gpt_oss", "flow=convert")
    whole = toy_gpt_oss.write(tmp_path / "whole", toy_gpt_oss.make("hf", "bf16"))
    for source, target, more in (
        (whole, int4, ("quant=int4", "quant.block_elems=32", "export=compressed_tensors")),
        (int4, rounded, ("quant=none", "export=hf", f"export.dtype={dtype}")),
    ):
        where = (f"model.source={source}", f"export.path={target}", f"paths.run={tmp_path / target.name}-run")
        code, _, err = say(*made, *where, *more)
        assert (code, err) == (0, "")
    for a, b in ((int4, rounded), (rounded, int4)):
        code, out, _ = say("flow=verify", f"a={a}", f"b={b}", f"paths.run={tmp_path / a.name}-verify")
        assert code == 7
        said = " ".join(out.split())
        why = f"(all equal once rounded to {DTYPES[dtype]}, as one side has them)"
        count = re.search(rf"54 shared tensors (\d+) differ in value {re.escape(why)}", said)
        assert count is not None, said
        assert f"equal once rounded to {DTYPES[dtype]} │ {count[1]}" in said
        assert "other values" not in said


@pytest.mark.parametrize(
    ("quant", "export"),
    [(("quant=nvfp4",), "modelopt"), (("quant=nvfp4", "quant.second=inverse_f32"), "compressed_tensors")],
    ids=["modelopt", "compressed-tensors"],
)
@pytest.mark.brief(1)
def test_mxfp4_is_nvfp4_where_that_is_exact(
    quant: tuple[str, ...], export: str, packed: Path, tmp_path: Path, say: Callable[..., Said]
) -> None:
    """Scales of the toy lie within 2^7 of each other; one that is 2^-30 of the largest does not fit."""
    target = tmp_path / "target"
    code, _, err = transcoded(packed, target, say, *quant, f"export={export}")
    assert (code, err) == (0, "")
    code, out, _ = say("flow=verify", f"a={packed}", f"b={target}", f"paths.run={tmp_path / 'verify'}")
    assert code == 0
    assert "the same model" in out
    assert "6 of them in another encoding" in out

    toy = toy_gpt_oss.make("hf", "mxfp4")
    name = "model.layers.1.mlp.experts.down_proj"
    toy.leaves[f"{name}_blocks"][3, 5, 0] = 0x11
    toy.leaves[f"{name}_scales"][3, 5, 0] = 90
    wide = toy_gpt_oss.write(tmp_path / "wide", toy)
    code, _, err = transcoded(wide, tmp_path / "refused", say, *quant, f"export={export}")
    assert code == 6
    assert name in err
    assert "allow_requantize=true" in err
    assert not (tmp_path / "refused").exists()
    allowed = (*quant, f"export={export}", "allow_requantize=true")
    code, out, err = transcoded(wide, tmp_path / "allowed", say, *allowed)
    assert code == 0, err
    manifest = json.loads((tmp_path / "allowed-run" / "manifest.json").read_text())
    assert [(e["name"], e["tensors"]) for e in manifest["errors"]] == [(name.replace(".1.", ".*."), 1)]
    assert 0 < manifest["errors"][0]["max_abs"] < 1


@pytest.fixture(scope="module")
def damaged(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A copy of a compressed-tensors export in several shards, to be damaged."""
    folder = tmp_path_factory.mktemp("damaged")

    def copy(name: str) -> Path:
        return Path(shutil.copytree(folder / "whole", folder / name))

    argv = sys.argv
    sys.argv = ["pipeline", "+model=gpt_oss", f"model.source={packed}", "flow=transcode", "export=compressed_tensors"]
    sys.argv += [f"export.path={folder / 'whole'}", "export.max_shard_size=200KB", f"paths.run={folder / 'run'}"]
    with pytest.raises(SystemExit, match="0"):
        command_line.main()
    sys.argv = argv
    return copy


def test_damage_is_said_with_its_place(
    damaged: Callable[[str], Path], say: Callable[..., Said], tmp_path: Path
) -> None:
    def said(folder: Path) -> tuple[int, str]:
        code, _, err = transcoded(folder, tmp_path / folder.name, say, "export=hf")
        assert "Traceback" not in err
        return code, err

    shards = [p.name for p in sorted(damaged("as it was").glob("*.safetensors"))]
    assert len(shards) > 3
    short, absent, word = damaged("cut-short"), damaged("absent"), damaged("word")
    data = (short / shards[2]).read_bytes()
    (short / shards[2]).write_bytes(data[:-5])
    code, err = said(short)
    assert code == 4
    assert shards[2] in err
    (absent / shards[1]).unlink()
    code, err = said(absent)
    assert code == 4
    assert shards[1] in err
    config = json.loads((word / "config.json").read_text())
    (word / "config.json").write_text(json.dumps({**config, "quantization_config": "mxfp4"}))
    code, err = said(word)
    assert code == 4
    assert "config.json: quantization_config is 'mxfp4'; an object is expected" in err
    del config["quantization_config"]["config_groups"]
    (word / "config.json").write_text(json.dumps(config))
    code, err = said(word)
    assert code == 4
    assert "config_groups has no group with weights" in err
    del config["quantization_config"]
    (word / "config.json").write_text(json.dumps(config))
    code, err = said(word)
    assert code == 4
    assert "model.layers.0.mlp.experts" in err

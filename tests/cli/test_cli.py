"""The command line: verbs, exit codes, and what is said of every kind of mistake."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.run import MAIN, ROOT, Said, pipeline

MODEL = MAIN[0]


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_the_main_job_and_the_same_again(tmp_path: Path) -> None:
    first = pipeline(*MAIN, cwd=tmp_path)
    assert first.code == 0, first.err
    assert "Quantization error" in first.out
    run = tmp_path / "outputs" / "gpt_oss-mxfp4-flow=convert"
    assert {p.name for p in run.iterdir() if not p.name.startswith(".")} == {
        "config.yaml", "errors.csv", "manifest.json", "metrics.jsonl", "model", "run.json", "tries.jsonl",
    }  # fmt: skip
    written = {f["path"]: f["nbytes"] for f in json.loads((run / "manifest.json").read_bytes())["outputs"]}
    assert {Path(p).name for p in written} == {p.name for p in (run / "model").iterdir()}
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*") if p.name != ".lock"}
    again = pipeline(*MAIN, cwd=tmp_path)
    assert again.code == 0
    assert "complete already, outputs verified" in again.err
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*") if p.name != ".lock"} == before


def test_plan_and_graph_write_nothing(tmp_path: Path) -> None:
    plan = pipeline("plan", *MAIN, cwd=tmp_path)
    assert plan.code == 0, plan.err
    for part in ("Stages", "checkpoint ← quantize", "model.layers.*.mlp.experts.gate_up_proj", "peak memory"):
        assert part in plan.out
    graph = pipeline("graph", *MAIN, cwd=tmp_path)
    assert graph.code == 0, graph.err
    assert graph.out.startswith("flowchart LR\n")
    assert "load -->|Checkpoint| decode" in graph.out
    assert files(tmp_path) == []


def test_help_names_verbs_groups_and_exit_codes(tmp_path: Path) -> None:
    said = pipeline("--help", cwd=tmp_path)
    assert said.code == 0
    for part in ("python -m pipeline plan", "\nquant: ", "mxfp4", "Exit codes", "\nmodel, families"):
        assert part in said.out
    assert len(said.out.splitlines()) <= 75, "about two screens"
    assert files(tmp_path) == []


# What is typed, and what must be in the answer: the mistake under the name that was typed, and the nearest name.
# Mistakes that are found together are typed together.
TYPOS = [
    (["+model=gpt_os"], ["error: model=gpt_os: there is no", "did you mean 'gpt_oss'"]),
    (
        [MODEL, "quant=mxfp", "export=hff", "flow=convrt", "kernels=nunpy", "dask.workerz=2", "mdoel.source=x"],
        ["quant=mxfp:", "did you mean 'mxfp4'", "allowed: ", "export=hff", "did you mean 'hf'?", "flow=convrt",
         "did you mean 'convert'?", "kernels=nunpy", "did you mean 'numpy'?", "dask.workerz", "did you mean 'workers'?",
         "'mdoel'", "did you mean 'model'?"],
    ),
    ([*MAIN, "quant.scale_rul=even"], ["quant.scale_rul", "did you mean 'scale_rule'"]),
    (
        [*MAIN, "quant.scale_rule=evn", "dask.scheduler=thread", "export.dtype=fp8", "seed=abc",
         "stages.quantize.measure=maybe", "+quantt=mxfp4", "+exprt.dtype=fp16", "++export.dtyp=fp16",
         "kernels.cast=[nunpy]", "+stages.decode.dtyp=x"],
        ["quant.scale_rule: 'evn'", "did you mean 'even'?", "floor, ceil, even, rceil",
         "dask.scheduler: 'thread'", "did you mean 'threads'?", "export.dtype: 'fp8'", "fp16",
         "seed: a whole number is expected, got 'abc'",
         "stages.quantize.measure: true or false is expected, got 'maybe'",
         "+quantt: nothing in the config refers to it", "did you mean 'quant'?",
         "+exprt.dtype: nothing in the config refers to it", "did you mean 'export'",
         "+export.dtyp: nothing", "did you mean 'dtype'?", "kernels.cast", "'nunpy'", "did you mean 'numpy'?",
         "stages.decode.dtyp"],
    ),
    ([MODEL, "kernels.cast.backends=[numpy]"], ["is a list of backends now", "kernels.cast=[numpy]"]),
    ([MODEL, "kernels.cast={backends:[numpy]}"], ["is a list of backends now"]),
    ([MODEL, "kernels.cast=[os.system]"], ["kernels.cast", "'os.system' is outside the packages a config may name"]),
    ([MODEL, "stages=[load,decode,quantise,export]"], ["'quantise'", "did you mean 'quantize'"]),
    ([MODEL, "stages.load.sorce=x"], ["'sorce'", "did you mean 'source'?"]),
    ([MODEL, "quant=null"], ["quant=null: null is no name of an option of quant"]),
    (["model=gpt_os"], ["model=gpt_os", "did you mean 'gpt_oss'"]),
    (["model.source=nowhere"], ["model.source='nowhere': no such file or folder"]),
    (["flow=verify", "a=nowhere", "b=neither"], ["a='nowhere': no such file", "b='neither': no such file"]),
    ([], ["model.source=DIR", "model=NAME", "gpt_oss"]),
    (["model.rules=[]"], ["model.rules=[]: no model chosen", "gpt_oss"]),
    ([MODEL, "export.container.stem=x"], ["'export.container' is null, so it has no fields"]),
    (["tnue", MODEL], ["'tnue'", "did you mean 'tune'?"]),
    (["gpt_oss"], ["'gpt_oss': a setting is written key=value"]),
    ([MODEL, "dask.memory=2GIG"], ["dask.memory='2GIG' is not a size", "2GiB"]),
    ([MODEL, "export.max_shard_size=big"], ["export.max_shard_size='big' is not a size"]),
    (
        [*MAIN, "flow=full", "export.max_shard_size=", "sampling.stop_tokens=[-1]", "engine.programs=-1",
         "calibrate=absmax", "calibrate.samples=abc"],  # which nothing asks for
        ["export.max_shard_size='' is not a size", "stop_tokens: -1 is no id of a token", "engine.programs='-1'",
         "./-1 is one", "calibrate.samples: a whole number is expected, got 'abc'"],
    ),
    (
        [*MAIN, "flow=full", "quant=int4", "seed=-1", "export.path=", "calibrate=awq+gptq",
         "calibrate.method.damping=-1", "calibrate.smooth.grid=1000000", "mesh=data", "mesh.axes.data=1000000"],
        ["seed=-1: a whole number from 0 to 2^63-1", "export.path='': a folder",
         "damping=-1.0: a share is needed", "grid=1000000: 1000 steps at most", "mesh.axes: 1,000,000 devices; 65,536"],
    ),
    ([*MAIN, "flow=full", "paths.outputs=", "engine.device="],
     ["paths.outputs='': a folder is needed", "engine.device='': auto, cpu"]),
    ([MODEL, "flow=finetune", "data.files=[nowhere.txt]", "train.peak_flops=0"],
     ["peak_flops=0.0: more than 0 are needed"]),
    ([*MAIN, "calibrate=rotate", "calibrate.rotate.seed=-1"], ["calibrate.rotate.seed=-1: 0 or more is needed"]),
    ([*MAIN, "calibrate=reconstruct", "calibrate.reconstruct.batch=128"],
     ["calibrate.reconstruct.batch: 128 rows at once; calibrate.windows leaves 128 at most, one of them to judge by"]),
    (
        [*MAIN, "sampling=greedy", "mesh=tensor", "train/optimizer=sgd", "data=text", "tokenizer=auto"],
        ["sampling=greedy: nothing in flow=convert (load, decode, quantize, export) refers to sampling; leave it out",
         "mesh=tensor", "train/optimizer=sgd", "data=text",
         "tokenizer=auto"],
    ),
    (["-m", *MAIN, "seed=1,2", "sampling=greedy,nucleus"], ["error: sampling=greedy: nothing in flow=convert"]),
    ([MODEL, "dask.workers=0"], ["dask.workers=0: at least 1 is needed"]),
    ([MODEL, "dask.workers=many"], ["dask.workers: a whole number is expected, got 'many'"]),
    ([MODEL, "--config-dir", "/nowhere/at/all"], ["--config-dir '/nowhere/at/all': no such folder"]),
    ([MODEL, "stages=["], ["stages=["]),
]  # fmt: skip


@pytest.mark.parametrize(("args", "said"), TYPOS, ids=[" ".join(a[:3]) or "nothing" for a, _ in TYPOS])
def test_typos(tmp_path: Path, args: list[str], said: list[str]) -> None:
    found = pipeline(*args, cwd=tmp_path)
    assert found.code in (2, 3, 4), found.err
    assert found.err.startswith("error: ")
    assert "Traceback" not in found.err
    assert found.out == ""
    for part in said:
        assert part in found.err
    assert files(tmp_path) == []


def test_keys_that_are_looked_at_may_be_added(tmp_path: Path) -> None:
    added = ("++seed=3", "++allow_requantize=true", "++export.dtype=keep", "+dask.resources.gpu=1", "+mine.dtype=bf16")
    said = pipeline("plan", *MAIN, *added, "stages.decode.dtype=${mine.dtype}", cwd=tmp_path)
    assert said.code == 0, said.err


def test_what_is_chosen_is_made_use_of_by_some_job(tmp_path: Path) -> None:
    """What of a sweep only one job refers to is no mistake; what an experiment chooses is none either."""
    said = pipeline("plan", "-m", MODEL, "quant=none", "flow=convert,generate", "sampling=nucleus", cwd=tmp_path)
    assert said.code == 0, said.err
    (tmp_path / "experiment").mkdir()
    chosen = "# @package _global_\ndefaults:\n  - override /sampling: nucleus\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(chosen)
    said = pipeline("plan", *MAIN, "--config-dir", str(tmp_path), "experiment=mine", cwd=tmp_path)
    assert said.code == 0, said.err
    said = pipeline("plan", *MAIN, "engine=jax", "export=hf", "hub=huggingface", "dask=threads", "tracker=none",
                    "kernels=numpy", cwd=tmp_path)  # fmt: skip
    assert said.code == 0, said.err


def test_a_setting_that_no_stage_reads_is_said_and_no_error(tmp_path: Path) -> None:
    """By a plan, by a run and when it is asked for again, and in its record; of a sweep once."""
    typed = ("sampling.max_tokens=2", "export.nvfp4_second=f32", "dask.retries=3")
    unused = [
        "unused: sampling.max_tokens=2 (no stage of this flow reads sampling; generate and chat do)",
        "unused: export.nvfp4_second=f32 (no stage of this flow reads export.nvfp4_second; quant=nvfp4 does)",
    ]

    def lines(said: Said) -> list[str]:
        assert said.code == 0, said.err
        return [line for line in said.out.splitlines() if line.startswith("unused: ")]

    assert lines(pipeline("plan", *MAIN, *typed, cwd=tmp_path)) == unused
    assert lines(pipeline(*MAIN, *typed, "paths.run=here", cwd=tmp_path)) == unused
    rows = json.loads((tmp_path / "here/manifest.json").read_bytes())["unused"]
    assert [f"unused: {row['setting']} ({row['reason']})" for row in rows] == unused
    assert lines(pipeline(*MAIN, typed[0], "paths.run=here", cwd=tmp_path)) == unused[:1], "what is typed now"
    sweep = ("-m", MODEL, "quant=mxfp4,nvfp4", *typed)
    assert lines(pipeline("plan", *sweep, cwd=tmp_path)) == unused[:1], "nvfp4 reads the other"
    assert lines(pipeline(*sweep, cwd=tmp_path)) == unused[:1]


def test_all_mistakes_are_said_at_once(tmp_path: Path) -> None:
    composing = pipeline(MODEL, "quant=mxfp", "dask.workerz=2", cwd=tmp_path)
    assert composing.code == 2
    assert "did you mean 'mxfp4'" in composing.err
    assert "'workers'?" in composing.err
    checking = pipeline(*MAIN, "seed=x", "quant.ties=evn", "export.dtype=fp8", "dask.retries=-1", cwd=tmp_path)
    assert checking.code == 2
    for key in ("seed", "quant.ties", "export.dtype", "dask.retries=-1"):
        assert f"\n  - {key}: " in checking.err


@pytest.mark.parametrize(
    "target", ["os.system", "subprocess.run", "builtins.exec", "pipeline.running.journal.Journal", "shutil.rmtree"]
)
def test_yaml_cannot_reach_other_code(tmp_path: Path, target: str) -> None:
    keys = ("quant._target_", "stages.load._target_", "export.container._target_")
    said = pipeline(*MAIN, "export=hf", *(f"{key}={target}" for key in keys), cwd=tmp_path)
    assert said.code == 2
    assert "error: 3 problems of one kind\n" in said.err
    assert f" (×3): {target!r} is outside the packages a config may name" in said.err
    for key in keys:
        assert key in said.err


def test_a_traceback_only_when_asked_for(tmp_path: Path) -> None:
    said = pipeline(*MAIN, "quant.scale_rule=evn", "debug=true", cwd=tmp_path)
    assert said.code != 0
    assert "Traceback" in said.err
    assert "did you mean 'even'?" in said.err


def exit_code(tmp_path: Path, *args: str) -> int:
    said = pipeline(*args, cwd=tmp_path)
    assert said.err.startswith("error: "), said.err
    assert "Traceback" not in said.err
    return said.code


@pytest.mark.parametrize(
    ("name", "other"), [("a=b", "it's here"), ("a, b", "a~1"), ("(x)", "{x}"), ("[x]", "back\\slash"), ("ü", "ü")]
)
def test_a_source_may_be_called_anything(tmp_path: Path, name: str, other: str) -> None:
    """Hydra's grammar has other uses for most of these; an override whose value is a path that exists is that path."""
    for folder in {name, other}:
        (tmp_path / folder).symlink_to(ROOT / "plugins/models/gpt_oss/tiny")
    said = pipeline("plan", "flow=verify", f"a={name}", f"b={other}", cwd=tmp_path)
    assert said.code == 0, said.err


def test_the_source_of_a_model_may_be_called_anything(tmp_path: Path) -> None:
    (tmp_path / "(x), [y]").symlink_to(ROOT / "plugins/models/gpt_oss/tiny")
    said = pipeline("plan", *MAIN, "model.source=(x), [y]", cwd=tmp_path)
    assert said.code == 0, said.err


def test_a_value_that_does_not_parse_is_said_to_want_quotes(tmp_path: Path) -> None:
    said = pipeline(*MAIN, "export.path=a=b", cwd=tmp_path)
    assert said.code == 2
    assert "goes in quotes, here 'export.path=\"a=b\"'" in said.err
    assert pipeline("plan", *MAIN, 'export.path="a=b"', cwd=tmp_path).code == 0


def test_plan_problems_exit_with_3(tmp_path: Path) -> None:
    assert exit_code(tmp_path, *MAIN, "dask.memory=1MiB") == 3
    assert exit_code(tmp_path, *MAIN, "model.rules=[{match: 'nothing.*', to: quant}]") == 3
    assert exit_code(tmp_path, MODEL, "stages=[decode,export]") == 3
    assert files(tmp_path) == []


def test_source_problems_exit_with_4_and_name_neighbours(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    said = pipeline(*MAIN, "model.source=chekpoint", cwd=tmp_path)
    assert said.code == 4
    assert "did you mean 'checkpoint'?" in said.err
    said = pipeline(*MAIN, "model.source=checkpoint", cwd=tmp_path)
    assert said.code == 4
    assert "is no checkpoint that can be read" in said.err
    (tmp_path / "checkpoint" / "model.safetensors").write_bytes(b"\xff" * 100)
    said = pipeline(*MAIN, "model.source=checkpoint", cwd=tmp_path)
    assert said.code == 4
    assert "model.safetensors" in said.err
    assert files(tmp_path) == ["checkpoint", "checkpoint/model.safetensors"]


def test_storage_problems_exit_with_5(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    assert exit_code(tmp_path, *MAIN, "export.path=taken") == 5
    (tmp_path / "file").write_text("")
    assert exit_code(tmp_path, *MAIN, "paths.run=file/run") == 5


def test_values_the_format_cannot_hold_exit_with_6(tmp_path: Path) -> None:
    """The checkpoint is finite; fp16 of values scaled far up is not."""
    import ml_dtypes
    import numpy as np
    from safetensors.numpy import save_file

    source = tmp_path / "source"
    source.mkdir()
    save_file({"w": np.array([[1.0, 1e30]], ml_dtypes.bfloat16)}, source / "model.safetensors")
    args = ("+model=gpt_oss", f"model.source={source}", "model.rules=[{match: '*', to: keep}]", "export=numpy")
    said = pipeline(*args, "export.dtype=fp16", cwd=tmp_path)
    assert said.code == 6, said.err
    assert "export.overflow=clamp" in said.err
    assert pipeline(*args, "export.dtype=fp16", "export.overflow=clamp", cwd=tmp_path).code == 0


def test_another_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    assert pipeline(*MAIN, "paths.run=here", cwd=tmp_path).code == 0
    said = pipeline(*MAIN, "seed=7", "paths.run=here", cwd=tmp_path)
    assert said.code == 2
    assert "holds another run (this one has seed=7)" in said.err
    assert pipeline(*MAIN, "seed=7", "paths.run=here", "overwrite=true", cwd=tmp_path).code == 0


@pytest.mark.parametrize("tamper", ["changed", "gone"])
def test_outputs_that_are_no_longer_what_was_written(tmp_path: Path, tamper: str) -> None:
    assert pipeline(*MAIN, "paths.run=here", cwd=tmp_path).code == 0
    file = next((tmp_path / "here/model").glob("*.safetensors"))
    if tamper == "gone":
        file.unlink()
    else:
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    said = pipeline(*MAIN, "paths.run=here", cwd=tmp_path)
    assert said.code == 2
    assert file.name in said.err
    assert "overwrite=true makes it again" in said.err


def test_a_sweep_finishes_what_it_can_and_does_nothing_twice(tmp_path: Path) -> None:
    sweep = ("-m", MODEL, "quant=mxfp4,none,int8", "export=hf")  # hf cannot hold int8
    first = pipeline(*sweep, cwd=tmp_path)
    assert first.code == 6
    assert "1 of 3 jobs failed" in first.err
    assert "Traceback" not in first.err
    outputs = tmp_path / "outputs"
    manifests = [outputs / f"gpt_oss-{quant}-export=hf-flow=convert" / "manifest.json" for quant in ("mxfp4", "none")]
    before = [m.stat().st_mtime_ns for m in manifests]
    (table,) = outputs.glob("sweep-*/sweep.csv")
    rows = [line.split(",") for line in table.read_text().splitlines()]
    assert [r[-1][:6] for r in rows[1:3]] == ["done", "done"]
    assert "failed" in table.read_text()
    again = pipeline("-m", MODEL, "quant=mxfp4,none", "export=hf", cwd=tmp_path)
    assert again.code == 0, again.err
    assert again.out.count("complete before") == 2
    assert [m.stat().st_mtime_ns for m in manifests] == before
    single = pipeline(*MAIN, "export=hf", cwd=tmp_path)  # and a run by itself is the sweep's
    assert "complete already" in single.err


@pytest.mark.parametrize("args", [("--help",), ("plan", *MAIN), ("graph", *MAIN)], ids=["help", "plan", "graph"])
def test_what_reads_nothing_imports_no_framework(tmp_path: Path, args: tuple[str, ...]) -> None:
    code = f"""
import sys, runpy
sys.argv = ["pipeline", *{args!r}]
try:
    runpy.run_module("pipeline", run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
heavy = {{"jax", "torch", "transformers", "flax", "dask", "distributed", "pandas", "scipy"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_conversion_does_without_what_asks_models_and_what_tells_trackers(tmp_path: Path) -> None:
    """Modules of ours that only other runs need: each takes some of the time before the first chunk."""
    code = f"""
import sys
from pipeline import __main__ as command_line
from pipeline.running import runner
def execute(*args):
    other = ("pipeline.engine", "pipeline.records.run", "pipeline.running.tracking", "pipeline.reporting.mesh_picture",
             "pipeline.rotated", "stages.calibrate", "rich")
    assert not (found := {{*other}} & {{*sys.modules}}), found
    raise SystemExit(0)
runner.execute = execute
sys.argv = ["pipeline", *{MAIN!r}, "flow=convert"]
command_line.main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_garbage_is_looked_for_while_a_run_is_at_work(tmp_path: Path) -> None:
    """A command begins and ends without: what it imports and composes stays. A run makes garbage, models in it."""
    code = f"""
import gc, sys
from pipeline import __main__ as command_line
from pipeline.running import runner
assert gc.isenabled(), "whoever only imports it is no command"
said = []
def load_run(cfg, own=command_line.load_run):
    said.append(gc.isenabled())
    return own(cfg)
def execute(*args):
    said.append(gc.isenabled())
    raise SystemExit(0)
command_line.load_run, runner.execute = load_run, execute
sys.argv = ["pipeline", *{MAIN!r}]
try:
    command_line.main()
except SystemExit as end:
    assert not end.code, end.code
assert said == [False, True], said
assert gc.isenabled() and gc.get_freeze_count(), "what there is at the end is not looked through once more"
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_oracles_know_numpy_only() -> None:
    """import-linter has lists of what is forbidden; this is the list of what is allowed."""
    import ast

    for path in (ROOT / "tests/oracles").glob("*.py"):
        tree = ast.parse(path.read_text())
        names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        names |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        tops = {n.partition(".")[0] for n in names if not n.startswith("tests.oracles")}
        assert tops <= {"numpy", *sys.stdlib_module_names}, path


def test_a_sweep_ends_with_the_largest_exit_code_of_its_jobs(tmp_path: Path) -> None:
    """The comparison that finds a difference is not the last one."""
    tiny = ROOT / "plugins" / "models" / "gpt_oss" / "tiny"
    other = Path(shutil.copytree(tiny, tmp_path / "other"))
    shard = sorted(other.glob("*.safetensors"))[0]
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    found = pipeline("-m", "flow=verify", f"a={tiny}", f"b={other},{tiny}", cwd=tmp_path)
    assert found.code == 7, found.err
    assert pipeline("-m", "flow=verify", f"a={tiny}", f"b={tiny},{tiny}", cwd=tmp_path).code == 0

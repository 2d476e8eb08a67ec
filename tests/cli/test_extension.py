"""A stage of one's own: in the project tree, from a folder of one's own, and from `new-stage`."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.run import MAIN, ROOT, Said, pipeline

CLUSTER = ("dask=distributed", "dask.workers=2", "dask.dashboard=false", "dask.memory=3GiB")

HALVE = """
from dataclasses import dataclass
from functools import partial

from pipeline.stage import Checkpoint, Context


def times(x, by):
    return (x * by).astype(x.dtype)


@dataclass(frozen=True)
class Halve:
    by: float = 0.5

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint.map(partial(times, by=self.by))
"""

# Eager, with a report for people; and a stage that goes on from it, with a view that only the graph can build.
STATISTICS = """
from dataclasses import dataclass

import numpy as np

from pipeline.stage import Checkpoint, Context, Footprint, Prediction
from stages.halve import times
from functools import partial


@dataclass(frozen=True)
class Table:
    peak: float
    by_tensor: dict[str, float]
    odd: np.ndarray


@dataclass(frozen=True)
class Statistics:
    def plan(self, checkpoint: Checkpoint) -> Prediction:
        return Prediction(None, Footprint(host_nbytes=30 << 20))

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Table:
        store = checkpoint.store
        found = {n: np.abs(store.read(n).astype(np.float32)).max() for n in store.specs}
        return Table(max(found.values()), found, np.array([np.inf]))


@dataclass(frozen=True)
class Normalize:
    def plan(self, checkpoint: Checkpoint, table: Table | None) -> Prediction:
        return Prediction(checkpoint, Footprint(device_nbytes=5 << 20, host_nbytes=40 << 20, kept_nbytes=10 << 20))

    def run(self, ctx: Context, checkpoint: Checkpoint, table: Table) -> Checkpoint:
        return checkpoint.map(partial(times, by=float(1 / table.peak)))
"""

NAMES = """
from dataclasses import dataclass
from pathlib import Path

import xxhash

from pipeline.stage import Checkpoint, Chunk, Context, OutputFile, Work
from pipeline.tensors.pieces import Piece


@dataclass(frozen=True)
class Listed:
    count: int


@dataclass(frozen=True)
class NamesWork:
    folder: Path
    names: tuple[str, ...]
    broken: bool

    @property
    def chunks(self):
        return [Chunk((Piece(n, ()),), 1, len(n), 1 << 20) for n in self.names]

    @property
    def outputs(self):
        return [OutputFile(self.folder / "names.txt", sum(len(n) + 1 for n in self.names))]

    def begin(self, *, fresh):
        (self.folder / "names").mkdir(exist_ok=True)

    def do(self, chunk):
        (self.folder / "names" / chunk.pieces[0].tensor).touch()
        return self.digest(chunk)

    def digest(self, chunk):
        return str((self.folder / "names" / chunk.pieces[0].tensor).exists())

    def finish(self, records):
        found = sorted(p.name for p in (self.folder / "names").iterdir())
        if not self.broken:
            (self.folder / "names.txt").write_text("".join(f"{n}\\n" for n in found))
        return Listed(len(records))


@dataclass(frozen=True)
class Names:
    broken: bool = False

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Work[Listed]:
        return NamesWork(ctx.run_dir, tuple(checkpoint.store.specs), self.broken)
"""


def put(folder: Path, name: str, cls: str, code: str | None, module: str = "", **options: object) -> None:
    """DIR/stages/NAME.yaml and, given code, DIR/stages/MODULE.py; no `__init__.py` anywhere."""
    (folder / "stages").mkdir(parents=True, exist_ok=True)
    if code is not None:
        (folder / "stages" / f"{module or name}.py").write_text(code)
    lines = [f"# @package stages.{name}", f"_target_: stages.{module or name}.{cls}"]
    lines += [f"{k}: {json.dumps(v)}" for k, v in options.items()]
    (folder / "stages" / f"{name}.yaml").write_text("\n".join(lines) + "\n")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    put(folder, "halve", "Halve", HALVE, by=0.5)
    put(folder, "statistics", "Statistics", STATISTICS)
    put(folder, "normalize", "Normalize", None, module="statistics")
    put(folder, "names", "Names", NAMES, broken=False)
    return folder


def run(*args: str, cwd: Path) -> Said:
    return pipeline("--config-dir", "mine", *args, cwd=cwd)


def manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def digest(folder: Path) -> str:
    [model] = [o for o in manifest(folder)["outputs"] if o["path"].endswith("model.safetensors")]
    return model["xxh3_128"]


@pytest.mark.repeats
def test_from_a_folder_on_threads_and_on_a_cluster(mine: Path, tmp_path: Path) -> None:
    args = (*MAIN, "stages=[load,decode,halve,quantize,export]")
    for how, more in (("threads", ()), ("cluster", CLUSTER), ("other", ("stages.halve.by=0.25",))):
        said = run(*args, f"paths.run={how}", f"paths.outputs=of-{how}", *more, cwd=tmp_path)  # none takes another's
        assert said.code == 0, said.err
    assert digest(tmp_path / "threads") == digest(tmp_path / "cluster") != digest(tmp_path / "other")
    assert "halve" in said.out
    # The folder's code is part of what the run is.
    (mine / "stages" / "halve.py").write_text(HALVE.replace("(x * by)", "(x * (by + 1))"))
    said = run(*args, "paths.run=threads", cwd=tmp_path)
    assert said.code == 2
    assert "was made by another version of the code (module stages.halve)" in said.err


@pytest.mark.repeats
def test_started_inside_the_folder(mine: Path, tmp_path: Path) -> None:
    """Python then sees a folder `stages` before ours."""
    (mine / "plugins" / "quant").mkdir(parents=True)
    for more in ((), CLUSTER):
        args = (*MAIN, "stages=[load,decode,halve,quantize,export]", "overwrite=true", f"paths.run={tmp_path}/run")
        said = pipeline("--config-dir=.", *args, *more, cwd=mine)
        assert said.code == 0, said.err


def test_a_method_from_a_folder(mine: Path, tmp_path: Path) -> None:
    """`plugins` is open too, in its sub-packages and for new ones."""
    for package, name in (("quant", "mine"), ("acme", "deep")):
        folder = mine / "plugins" / package
        folder.mkdir(parents=True)
        base = "plugins.quant.blockwise" if name == "mine" else "plugins.quant.mine"
        cls = "Blockwise" if name == "mine" else "Mine"
        new = name.capitalize()
        code = f"from dataclasses import dataclass\n\nfrom {base} import {cls}\n\n\n@dataclass(frozen=True)\n"
        (folder / f"{name}.py").write_text(f"{code}class {new}({cls}):\n    note: str = 'mine'\n")
        (mine / "quant").mkdir(exist_ok=True)
        fields = "element: e2m1\nblock_elems: 32\nscale: e8m0\nscale_rule: rceil\nnote: x\n"
        (mine / "quant" / f"{name}.yaml").write_text(f"_target_: plugins.{package}.{name}.{new}\n{fields}")
    wanted = pipeline(*MAIN, "quant.scale_rule=rceil", "paths.run=ours", cwd=tmp_path)
    assert wanted.code == 0, wanted.err
    for how in ("mine", "deep"):
        said = run(MAIN[0], f"quant={how}", f"paths.run={how}", *(CLUSTER if how == "deep" else ()), cwd=tmp_path)
        assert said.code == 0, said.err
        assert digest(tmp_path / how) == digest(tmp_path / "ours")


@pytest.mark.repeats
def test_what_eager_stages_give(mine: Path, tmp_path: Path) -> None:
    """A report goes to the console and the manifest; a checkpoint is what later stages see, on both schedulers."""
    args = (*MAIN, "stages=[load,decode,statistics,normalize,quantize,export]", "dask.chunk=1MiB")
    for how, more in (("threads", ()), ("cluster", CLUSTER)):
        said = run(*args, *more, f"paths.run={how}", f"paths.outputs=of-{how}", cwd=tmp_path)
        assert said.code == 0, said.err
        found = manifest(tmp_path / how)
        table = found["results"]["statistics"]
        assert set(found["results"]) == {"statistics"}
        assert table["peak"] == max(table["by_tensor"].values()) > 1
        assert table["odd"] == "[inf]"
        assert "Result of statistics" in said.out
        assert "peak" in said.out
        seconds = {s["name"]: s["seconds"] for s in found["stages"]}
        assert seconds["statistics"] > 0
    assert digest(tmp_path / "threads") == digest(tmp_path / "cluster")
    again = run(*args, "paths.run=threads", cwd=tmp_path)
    assert "complete already" in again.err
    assert "Result of statistics" in again.out


def test_a_lazy_stage_cannot_plan_on_what_nobody_predicts(mine: Path, tmp_path: Path) -> None:
    code = STATISTICS.replace(
        "    def plan(self, checkpoint: Checkpoint, table: Table | None)", "    def _other(self, a, b)"
    )
    (mine / "stages" / "statistics.py").write_text(code)
    said = pipeline(
        "plan", "--config-dir", "mine", MAIN[0], "stages=[load,decode,statistics,normalize,export]", cwd=tmp_path
    )
    assert said.code == 3
    assert "stages.normalize: takes the result of 'statistics', of which its `plan` predicts nothing" in said.err


@pytest.mark.parametrize("more", [(), CLUSTER], ids=["threads", "cluster"])
@pytest.mark.brief("threads")
def test_work_of_its_own(more: Sequence[str], mine: Path, tmp_path: Path) -> None:
    said = run(MAIN[0], "stages=[load,names]", "paths.run=run", *more, cwd=tmp_path)
    assert said.code == 0, said.err
    found = manifest(tmp_path / "run")
    names = (tmp_path / "run" / "names.txt").read_text().split()
    assert found["results"] == {"names": {"count": len(names)}}
    assert found["chunks"]["all"] == len(names) == 71
    [output] = found["outputs"]
    assert (output["path"], output["nbytes"]) == (str(tmp_path / "run" / "names.txt"), sum(len(n) + 1 for n in names))
    (tmp_path / "run" / "names.txt").write_text("")
    said = run(MAIN[0], "stages=[load,names]", "paths.run=run", cwd=tmp_path)
    assert said.code == 2
    assert "names.txt: was changed since this run finished" in said.err


def test_work_that_does_not_write_what_it_promised(mine: Path, tmp_path: Path) -> None:
    said = run(MAIN[0], "stages=[load,names]", "stages.names.broken=true", "paths.run=run", cwd=tmp_path)
    assert said.code == 6
    assert "stage 'names' promised files and did not write them" in said.err
    assert "names.txt" in said.err


BAD = {
    "no module": (None, "there is no {mine}/stages/bad.py or ", "_target_: stages.bad.Bad\n"),
    "no class": ("x = 1\n", "'stages.bad.Bad' is not a dataclass of stages.bad", "_target_: stages.bad.Bad\n"),
    "needs a package": (
        "import no_such_package\n",
        "importing stages.bad needs the package 'no_such_package', which is not installed",
        "_target_: stages.bad.Bad\n",
    ),
    "no run": (
        "from dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass Bad:\n    x: int = 1\n",
        "stages.bad: Bad has no method run(ctx, …), so it is no stage",
        "_target_: stages.bad.Bad\nx: 2\n",
    ),
    "no annotation": (
        HALVE.replace("Halve", "Bad").replace("checkpoint: Checkpoint)", "checkpoint)"),
        "stages.bad: parameter 'checkpoint' of run has no type annotation",
        "_target_: stages.bad.Bad\nby: 2\n",
    ),
    "no ctx": (
        HALVE.replace("Halve", "Bad").replace("self, ctx: Context, checkpoint: Checkpoint", "self"),
        "stages.bad: run takes ctx, and then one named parameter for every artefact",
        "_target_: stages.bad.Bad\nby: 2\n",
    ),
    "reads": (
        HALVE.replace("Halve", "Bad").replace("return", "checkpoint.store.read('lm_head.weight'); return", 2),
        "stage 'bad' reads 'lm_head.weight' in `run`; return a view, or define `plan` as well",
        "_target_: stages.bad.Bad\nby: 2\n",
    ),
    "unknown field": (
        HALVE.replace("Halve", "Bad"),
        "stages.bad.buy: Bad has no field 'buy'; did you mean 'by'?",
        "_target_: stages.bad.Bad\nbuy: 2\n",
    ),
    "no package line": (HALVE.replace("Halve", "Bad"), "its YAML must begin with `# @package stages.", None),
    "not elementwise in dtype": (
        HALVE.replace("Halve", "Bad").replace(".astype(x.dtype)", ".astype('float64')"),
        "the function given to `map` turned bfloat16 (",
        "_target_: stages.bad.Bad\nby: 2\n",
    ),
}


@pytest.mark.parametrize("fault", BAD)
def test_faults_are_named(fault: str, tmp_path: Path) -> None:
    code, said, yaml = BAD[fault]
    mine = tmp_path / "mine"
    (mine / "stages").mkdir(parents=True)
    if code is not None:
        (mine / "stages" / "bad.py").write_text(code)
    head = "# @package stages.bad\n" if yaml is not None else ""
    (mine / "stages" / "bad.yaml").write_text(head + (yaml or "_target_: stages.bad.Bad\n"))
    answer = run(*MAIN, "stages=[load,decode,bad,quantize,export]", cwd=tmp_path)
    assert answer.code in (2, 3, 6), answer.err
    assert "Traceback" not in answer.err
    assert said.format(mine=mine) in answer.err


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project tree, to write stages into."""
    tree = tmp_path_factory.mktemp("checkout")
    junk = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in ("weightmill", "pipeline", "stages", "plugins", "conf", "hydra_plugins"):
        shutil.copytree(ROOT / name, tree / name, ignore=junk)
    (tree / "tests" / "unit").mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", tree)
    return tree


def tool(*args: str, cwd: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(cwd), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-m", *args], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_in_the_project_tree(checkout: Path, thorough: bool) -> None:
    """Written by new-stage, run as it says, tested, linted, type-checked; a second one is refused."""
    said = pipeline("new-stage", "drop_bias", cwd=checkout)
    assert said.code == 0, said.err
    written = ["stages/drop_bias.py", "conf/stages/drop_bias.yaml", "tests/unit/test_drop_bias.py"]
    assert [line for line in said.out.splitlines() if line.startswith("wrote")] == [f"wrote {w}" for w in written]
    assert all((checkout / w).is_file() for w in written)
    chosen = "stages=[load,decode,drop_bias,quantize,export]"
    assert f"  python -m pipeline +model=gpt_oss quant=mxfp4 '{chosen}'\n" in said.out
    runs = {"one": "factor=1", "two": "factor=2"} if thorough else {"two": "factor=2"}
    for run_dir, option in runs.items():
        done = pipeline(*MAIN, chosen, f"stages.drop_bias.{option}", f"paths.run={run_dir}", cwd=checkout)
        assert done.code == 0, done.err
    if thorough:  # that a factor scales, its own test says, and of runs with other options others do
        assert digest(checkout / "one") != digest(checkout / "two")
    tool("pytest", "-q", "-p", "no:cacheprovider", "tests/unit/test_drop_bias.py", cwd=checkout)
    for args in (("ruff", "check", "--no-cache"), ("ruff", "format", "--no-cache", "--check")):
        tool(*args, *written[::2], cwd=checkout)
    if (known := ROOT / ".mypy_cache").is_dir():  # of `make types`: what the file imports need not be read again
        shutil.copytree(known, checkout / ".mypy_cache")
    tool("mypy", written[0], cwd=checkout)
    shutil.rmtree(checkout / ".mypy_cache")
    before = [(checkout / w).read_bytes() for w in written]
    again = pipeline("new-stage", "drop_bias", cwd=checkout)
    assert again.code == 2
    assert "a stage 'drop_bias' is there already" in again.err
    assert [(checkout / w).read_bytes() for w in written] == before


def test_new_stage_in_a_folder(tmp_path: Path) -> None:
    said = pipeline("new-stage", "drop_bias", "--dir", "mine", cwd=tmp_path)
    assert said.code == 0, said.err
    files = sorted(p.relative_to(tmp_path / "mine").as_posix() for p in (tmp_path / "mine").rglob("*.*"))
    assert files == ["stages/drop_bias.py", "stages/drop_bias.yaml", "test_drop_bias.py"]
    chosen = "'stages=[load,decode,drop_bias,quantize,export]'"
    assert (
        f"  python -m pipeline --config-dir mine +model=gpt_oss quant=mxfp4 {chosen} stages.drop_bias.factor=2"
        in said.out
    )
    done = run(*MAIN, chosen.strip("'"), cwd=tmp_path)
    assert done.code == 0, done.err
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "mine/test_drop_bias.py"]
    tested = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "one name is needed, got 0; new-stage NAME [--dir DIR]"),
        (["a", "b"], "one name is needed, got 2"),
        (["DropBias"], "'DropBias' cannot name a stage; did you mean 'drop_bias'?"),
        (["drop-bias"], "did you mean 'drop_bias'?"),
        (["2nd"], "beginning with a letter"),
        (["../up"], "did you mean 'up'?"),
        (["class"], "'class' means something else to Python, YAML or Hydra"),
        (["null"], "'null' means something else"),
        (["json"], "'json' is a module of Python's own"),
        (["load"], "a stage 'load' is there already (taken: "),
        (["fine", "--dir"], "--dir needs a folder"),
        (["fine", "--dri=x"], "'--dri=x' is no option"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else None,
)
def test_names_are_checked(
    args: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.config.scaffold import new_stage
    from pipeline.errors import ConfigError

    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as why:
        new_stage([*args, "--dir", "mine"] if args and not any(a.startswith("--") for a in args) else args)
    assert said in str(why.value)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_nothing_is_written_when_one_file_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.config.scaffold import new_stage
    from pipeline.errors import ConfigError

    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_fine.py").write_text("mine")
    with pytest.raises(ConfigError, match=r"test_fine.py: exists already, and new-stage never overwrites"):
        new_stage(["fine", "--dir", "."])
    assert [p.name for p in tmp_path.iterdir()] == ["test_fine.py"]


def test_mistakes_in_sweeps_know_the_folder(tmp_path: Path) -> None:
    """Whatever characters its name has: what is allowed includes what the folder brings."""
    odd = tmp_path / "d i'r=x"
    put(odd, "halve", "Halve", HALVE, by=0.5)
    shutil.copytree(odd / "stages", odd / "quant")
    args = ("--config-dir", odd.name, "-m", MAIN[0], "stages=[load,decode,halve,export]", "quant=none,halv", "seed=1")
    said = pipeline(*args, cwd=tmp_path)
    assert said.code == 2
    assert "quant=halv: there is no 'halv' in quant; did you mean 'halve'?" in said.err
    assert "in stages" not in said.err

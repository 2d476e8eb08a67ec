"""Sweeps as people run them: composed before the first job runs, one graph, killed and gone on with."""

import csv
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cli.run import MAIN, kill_tree, pipeline, start

MODEL = MAIN[0]
TWELVE = ("quant=mxfp4,int8,q8_0,nvfp4", "export=plain,numpy,auto", "dask.chunk=256KiB")
FOUR = ("quant=mxfp4,int8", "export=plain,auto", "dask.chunk=256KiB")
TIME = "took [s]"


def table(outputs: Path) -> list[list[str]]:
    """sweep.csv without what differs between equal sweeps: how long it took, and whether it was done before."""
    [file] = outputs.glob("sweep-*/sweep.csv")
    rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
    return [[v for k, v in row.items() if k not in (TIME, "result")] for row in rows]


def experiments(folder: Path) -> Path:
    (folder / "mine/experiment").mkdir(parents=True)
    for name, quant, seed in (("small", "mxfp4", 3), ("exact", "none", 4)):
        (folder / f"mine/experiment/{name}.yaml").write_text(
            f"# @package _global_\ndefaults:\n  - override /quant: {quant}\nseed: {seed}\n"
        )
    return folder / "mine"


def test_a_typo_in_the_last_job_stops_the_sweep_before_the_first(tmp_path: Path) -> None:
    said = pipeline("-m", MODEL, "quant=mxfp4,none,foo", "export=plain,autoo", cwd=tmp_path)
    assert said.code == 2
    assert "there is no 'foo' in quant" in said.err
    assert "there is no 'autoo' in export; did you mean 'auto'?" in said.err
    assert "quant=mxfp4 export=autoo and 2 more: " in said.err
    one = pipeline("plan", "-m", MODEL, "quant=mxpf4,int8", cwd=tmp_path)
    assert one.err.startswith("error: quant=mxpf4: there is no 'mxpf4' in quant; did you mean 'mxfp4'")
    assert not (tmp_path / "outputs").exists()


def test_an_option_that_all_values_of_a_swept_group_have(tmp_path: Path) -> None:
    said = pipeline("plan", "-m", MODEL, "quant=int8,q8_0", "quant.search=mse", cwd=tmp_path)
    assert said.code == 0, said.err
    assert "2 jobs with 8 stages" in said.out
    wrong = pipeline("plan", "-m", MODEL, "quant=int8,q8_0", "quant.serch=mse", cwd=tmp_path)
    assert wrong.code == 2
    assert "quant=int8: quant.serch=mse: there is no 'serch' in quant; did you mean 'search'" in wrong.err


def test_a_job_that_cannot_run_does_not_stop_the_rest(tmp_path: Path) -> None:
    sweep = ("-m", MODEL, "quant=int8,q8_0", "export=gguf")
    planned = pipeline("plan", *sweep, cwd=tmp_path)
    assert planned.code == 3
    assert "error: quant=int8: export: export=gguf cannot hold this" in planned.err
    assert not (tmp_path / "outputs").exists()
    said = pipeline(*sweep, cwd=tmp_path)
    assert said.code == 6
    assert "1 of 2 jobs failed\n  quant=int8: export: export=gguf cannot hold this" in said.err
    assert table(tmp_path / "outputs")[0][1] == ""
    assert (tmp_path / "outputs/gpt_oss-q8_0-export=gguf-flow=convert/manifest.json").exists()


def test_where_no_job_can_run_each_says_why(tmp_path: Path) -> None:
    said = pipeline("-m", MODEL, "quant=int8,int4", "export=gguf", cwd=tmp_path)
    assert said.code == 6
    assert "2 of 2 jobs failed" in said.err
    assert said.err.count("export=gguf cannot hold this") == 4, "when it is its turn, and at the end"
    assert "Traceback" not in said.err


def test_the_plan_of_a_sweep_shows_all_of_it(tmp_path: Path) -> None:
    said = pipeline("plan", "-m", MODEL, *TWELVE, "dask.workers=2", cwd=tmp_path)
    assert said.code == 0, said.err
    assert "12 jobs with 48 stages, 19 of them different" in said.out
    assert "chunks read 9.7 MiB (116.9 MiB job by job) and write " in said.out
    assert "│ quantize │ 4, 5, 6 " in said.out
    assert "peak memory " in said.out
    assert list(tmp_path.iterdir()) == []
    drawn = pipeline("graph", "-m", MODEL, "quant=mxfp4,none", cwd=tmp_path)
    assert drawn.out.count('["1.decode"]') == 1
    assert '["2.quantize"]' in drawn.out
    assert '["2.decode"]' not in drawn.out


def test_lists_in_step(tmp_path: Path) -> None:
    lists = ("quant=mxfp4,none", "seed=1,2,3", "export=hf,plain")
    said = pipeline("-m", MODEL, *lists, "zip=[quant,export]", cwd=tmp_path)
    assert said.code == 0, said.err
    runs = [json.loads(p.read_text())["command"] for p in (tmp_path / "outputs").glob("*/manifest.json")]
    found = {tuple(o.partition("=")[2] for o in run if o.startswith(("quant", "seed", "export"))) for run in runs}
    assert found == {(q, s, e) for q, e in (("mxfp4", "hf"), ("none", "plain")) for s in "123"}
    for wrong, why in (
        ("zip=[quant,seed]", "zip: quant has 2 values, seed has 3 values; what goes together has equally many"),
        ("zip=[quant,exprt]", "zip: 'exprt' has no list of values here, or goes with others; did you mean 'export'?"),
        ("zip=[quant]", "names of at least two lists are expected"),
    ):
        refused = pipeline("plan", "-m", MODEL, *lists, wrong, cwd=tmp_path)
        assert refused.code == 2
        assert why in refused.err
    alone = pipeline("plan", *MAIN, "zip=[quant,export]", cwd=tmp_path)
    assert alone.code == 2
    assert "-m makes it a sweep" in alone.err


def test_experiments_by_name(tmp_path: Path) -> None:
    folder = experiments(tmp_path)
    said = pipeline("-m", "--config-dir", folder.name, MODEL, "experiment=small,exact", cwd=tmp_path)
    assert said.code == 0, said.err
    runs = {p.parent.name: p.parent / "config.yaml" for p in (tmp_path / "outputs").glob("*/manifest.json")}
    assert {*runs} == {f"gpt_oss-experiment={name}-flow=convert" for name in ("small", "exact")}
    assert "seed: 4" in runs["gpt_oss-experiment=exact-flow=convert"].read_text().splitlines()
    unknown = pipeline("plan", "--config-dir", folder.name, MODEL, "experiment=smal", cwd=tmp_path)
    assert "there is no 'smal' in experiment; did you mean 'small'?" in unknown.err


def test_an_experiment_may_be_a_sweep(tmp_path: Path) -> None:
    folder = experiments(tmp_path)
    (folder / "experiment/both.yaml").write_text(
        "# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      quant: mxfp4,none\n"
    )
    said = pipeline("plan", "--config-dir", folder.name, MODEL, "experiment=both", cwd=tmp_path)
    assert said.code == 0, said.err
    assert "2 jobs with 8 stages" in said.out


def test_jobs_with_one_folder(tmp_path: Path) -> None:
    said = pipeline("-m", MODEL, "quant=mxfp4,none", "paths.run=here", cwd=tmp_path)
    assert said.code == 2
    assert "is the folder of 'quant=mxfp4' and of 'quant=none'; jobs have one each" in said.err
    assert not (tmp_path / "here").exists()
    said = pipeline("plan", "-m", MODEL, "quant=mxfp4,none", "export.path=here", cwd=tmp_path)
    assert said.code == 2
    assert "here is where 'quant=mxfp4' and 'quant=none' would write" in " ".join(said.err.split())
    shared = pipeline(
        "plan", "-m", MODEL, "flow=full", "evaluate.windows.tokens=64,128", "export.path=here", cwd=tmp_path
    )
    assert shared.code == 0, shared.err
    same = pipeline("-m", MODEL, "quant=mxfp4,mxfp4", cwd=tmp_path)
    assert same.code == 0, same.err
    assert len(table(tmp_path / "outputs")) == 2


def state(outputs: Path) -> dict[str, int]:
    """What is finished, by when it was written: complete jobs, kept results (evaluations, baselines, exports)."""
    files = [*outputs.glob("*/manifest.json"), *outputs.glob(".results/*/result.json")]
    return {str(file): file.stat().st_mtime_ns for file in files}


def chunks(outputs: Path) -> dict[Path, list[str]]:
    """Run → keys of chunks that its journal has; whole lines."""
    found = {}
    for file in outputs.glob("*/journal.jsonl"):
        lines = file.read_bytes().split(b"\n")[:-1]
        found[file.parent] = [str(json.loads(line)["key"]) for line in lines if line]
    return found


def done(outputs: Path) -> int:
    """How far it is: chunks in all journals. It is asked again and again, so that nothing is parsed."""
    return sum(file.read_bytes().count(b"\n") for file in outputs.glob("*/journal.jsonl"))


def kill_again_and_again(sweep: Sequence[str], cwd: Path, moments: Sequence[Callable[[Path], bool]]) -> int:
    """Start the sweep, kill it with -9 at each of the moments, and let it end; nothing that was finished is done twice.

    Args:
        moments: of each try: whether it is now; asked again and again.

    Returns:
        How often it was killed before it had ended.
    """
    outputs = cwd / "outputs"
    for killed, now in enumerate((*moments, lambda outputs: False)):
        before, had = state(outputs), chunks(outputs)
        process = start("-m", *sweep, "progress=false", cwd=cwd)
        while process.poll() is None and not now(outputs):
            time.sleep(0.03)
        if ended := process.poll() is not None:
            _, err = process.communicate()
            assert process.returncode == 0, err
        else:
            kill_tree(process.pid)
            process.communicate()
        assert before.items() <= state(outputs).items()
        for run, keys in chunks(outputs).items():
            assert len({*keys}) == len(keys)  # what is in the journal was not done again
            assert keys[: len(had.get(run, []))] == had.get(run, [])
        if ended:
            return killed
    raise AssertionError("it was to end")


def same_files(outputs: Path, whole: Path) -> None:
    for file in whole.glob("*/model/*"):
        if file.name != ".weightmill.json":
            assert (outputs / file.relative_to(whole)).read_bytes() == file.read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs of the four jobs, undisturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    undisturbed = pipeline("-m", MODEL, *FOUR, cwd=folder)
    assert undisturbed.code == 0, undisturbed.err
    return folder / "outputs"


@pytest.mark.parametrize("how", [(), ("dask=distributed", "dask.workers=2")], ids=["threads", "distributed"])
@pytest.mark.brief("threads")
def test_killed_again_and_again(tmp_path: Path, whole: Path, how: Sequence[str], thorough: bool) -> None:
    """Wherever it is killed, it ends as an undisturbed one."""
    outputs, kills, rng = tmp_path / "outputs", 5 if thorough and not how else 2, random.Random(20)

    def after_some() -> Callable[[Path], bool]:
        goal: list[int] = []

        def now(outputs: Path) -> bool:
            if not goal:
                goal.append(done(outputs) + rng.randrange(1, 60))  # of some 230 chunks
            return done(outputs) >= goal[0]

        return now

    killed = kill_again_and_again((MODEL, *FOUR, *how), tmp_path, [after_some() for _ in range(kills)])
    assert killed >= kills // 2
    assert table(outputs) == table(whole)
    same_files(outputs, whole)


@pytest.mark.repeats
def test_killed_while_it_evaluates(tmp_path: Path, thorough: bool) -> None:
    """A baseline and evaluations that were finished are found, and those that were not are made, whenever it is killed:
    a moment after the first export, the baseline and the first evaluation were kept."""
    (tmp_path / "text.txt").write_text("The state of the Union is that of the people of the United States. " * 4)
    stages = "stages=[load,decode,quantize,export,evaluate]"
    sweep = (MODEL, "quant=mxfp4,int8", stages, "evaluate.windows.tokens=64", "evaluate.texts=[text.txt]")
    undisturbed = pipeline("-m", *sweep, "paths.outputs=whole", cwd=tmp_path)
    assert undisturbed.code == 0, undisturbed.err
    rng = random.Random(21)

    def when(kept: int) -> Callable[[Path], bool]:
        delay_s = rng.uniform(0.0, 0.5)
        since: list[float] = []

        def now(outputs: Path) -> bool:
            if len([*outputs.glob(".results/*/result.json")]) >= kept and not since:
                since.append(time.monotonic())
            return bool(since) and time.monotonic() > since[0] + delay_s

        return now

    places = (1, 2, 3) if thorough else (1, 2)
    killed = kill_again_and_again(sweep, tmp_path, [when(kept) for kept in places])
    assert killed == len(places)
    outputs, whole = tmp_path / "outputs", tmp_path / "whole"
    assert table(outputs) == table(whole)
    same_files(outputs, whole)
    kept = [[*folder.glob(".results/*/result.json")] for folder in (outputs, whole)]
    assert len(kept[0]) == len(kept[1])  # none of a key of its own

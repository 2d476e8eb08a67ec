"""An installed plugin: found by its entry point, imported only when chosen, run like our own stages."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 from here on
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.cli.run import MAIN, ROOT, Said, pipeline

SOURCE = ROOT / "tests" / "third_party" / "acme_prune"
TINY = ROOT / "plugins" / "models" / "gpt_oss" / "tiny"
CHOSEN = "stages=[load,decode,prune_small,quantize,export]"
EAGER = "stages=[load,decode,prune_fraction,quantize,export]"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which acme-prune is installed; built from a copy, offline."""
    source = shutil.copytree(SOURCE, tmp_path_factory.mktemp("source") / "acme_prune")
    target = tmp_path_factory.mktemp("site")
    flags = ["-q", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *flags, "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {"PYTHONPATH": str(target)}


def tensors(said: Said, run: Path) -> dict[str, np.ndarray]:
    assert said.code == 0, said.err
    return load_file(run / "model" / "model.safetensors")


@pytest.mark.parametrize("stages", [CHOSEN, EAGER], ids=["view", "eager"])
@pytest.mark.brief("view")
def test_runs_on_threads_and_on_a_cluster(stages: str, tmp_path: Path, installed: dict[str, str]) -> None:
    unchanged = (MAIN[0], "quant=none", "export.dtype=fp32")
    args = (*unchanged, stages)
    threads = tensors(pipeline(*args, "paths.run=threads", cwd=tmp_path, env=installed), tmp_path / "threads")
    cluster = ("dask=distributed", "dask.workers=2", "dask.dashboard=false", "dask.memory=3GiB")
    said = pipeline(*args, *cluster, "paths.run=cluster", "paths.outputs=other", cwd=tmp_path, env=installed)
    assert tensors(said, tmp_path / "cluster").keys() == threads.keys()
    files = [(tmp_path / how / "model" / "model.safetensors").read_bytes() for how in ("threads", "cluster")]
    assert files[0] == files[1]
    name = "lm_head.weight"
    [plain] = (shard[name].astype(np.float32) for shard in map(load_file, TINY.glob("*.safetensors")) if name in shard)
    zeros = (threads[name] == 0).mean() - (plain == 0).mean()
    assert 0.01 < zeros < 0.3
    kept = threads[name] != 0
    assert (threads[name][kept] == plain[kept]).all()
    assert np.abs(plain[~kept]).max() <= np.abs(plain[kept]).min()


def test_imported_only_when_chosen(tmp_path: Path, installed: dict[str, str]) -> None:
    def imported(*args: str) -> set[str]:
        said = pipeline("plan", *MAIN, *args, cwd=tmp_path, env={**installed, "PYTHONVERBOSE": "1"})
        assert said.code == 0, said.err
        assert "import 'plugins.quant.blockwise'" in said.err
        return set(re.findall(r"^import '(acme_prune\S*)'", said.err, re.MULTILINE))

    assert imported() == set()
    assert imported(CHOSEN) == {"acme_prune", "acme_prune.small"}


@pytest.mark.repeats
def test_in_a_sweep(tmp_path: Path, installed: dict[str, str]) -> None:
    args = ("-m", *MAIN, CHOSEN, "stages.prune_small.threshold=0,0.02", "dask.workers=2")
    said = pipeline(*args, cwd=tmp_path, env=installed)
    assert said.code == 0, said.err
    manifests = [json.loads(p.read_text()) for p in tmp_path.glob("outputs/*/manifest.json")]
    assert len(manifests) == 2
    assert [s["name"] for s in manifests[0]["stages"]] == ["load", "decode", "prune_small", "quantize", "export"]
    digests = [{Path(o["path"]).name: o["xxh3_128"] for o in m["outputs"]} for m in manifests]
    assert digests[0]["model.safetensors"] != digests[1]["model.safetensors"]
    assert digests[0]["config.json"] == digests[1]["config.json"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["stages.prune_small.treshold=1"], ["stages.prune_small.treshold=1", "did you mean 'threshold'?"]),
        (["stages.prune_small.threshold=-1"], ["stages.prune_small: threshold -1.0: 0 or more is needed"]),
        (["stages.prune_small.threshold=much"], ["stages.prune_small.threshold: a number is expected, got 'much'"]),
        (["stages.prune_small.select='lm_hed*'"], ["stages.prune_small: pattern 'lm_hed*'", "'lm_head.weight'"]),
        (
            ["stages=[load,decode,prune_smal,export]"],
            ["there is no 'prune_smal' in stages", "did you mean 'prune_small'"],
        ),
        (["stages.prune_small._target_=os.system"], ["'os.system' is outside the packages", "acme_prune"]),
        (["stages.prune_small._target_=acme_prune.small.PruneSmal"], ["did you mean 'PruneSmall'?"]),
    ],
    ids=lambda v: v[0] if isinstance(v, list) else None,
)
@pytest.mark.brief(1)  # tests/unit/config/test_resolve.py has those of values
def test_its_mistakes_are_explained_like_ours(
    args: list[str], said: list[str], tmp_path: Path, installed: dict[str, str]
) -> None:
    answer = pipeline(*MAIN, CHOSEN, *args, cwd=tmp_path, env=installed)
    assert answer.code in (2, 3), answer.out
    assert "Traceback" not in answer.err
    for part in said:
        assert part in answer.err
    assert not (tmp_path / "outputs").exists()


def test_without_it_the_name_is_unknown(tmp_path: Path) -> None:
    answer = pipeline(*MAIN, CHOSEN, cwd=tmp_path)
    assert answer.code == 2
    assert "there is no 'prune_small' in stages" in answer.err


def test_another_version_is_another_run(tmp_path: Path, installed: dict[str, str], thorough: bool) -> None:
    site = shutil.copytree(installed["PYTHONPATH"], tmp_path / "site")
    env = {"PYTHONPATH": str(site)}
    assert pipeline(*MAIN, CHOSEN, cwd=tmp_path, env=env).code == 0
    if thorough:  # of our own code test_identity.py says it
        assert "complete already" in pipeline(*MAIN, CHOSEN, cwd=tmp_path, env=env).err
    module = site / "acme_prune" / "small.py"
    module.write_text(module.read_text().replace("< threshold", "<= threshold"))
    answer = pipeline(*MAIN, CHOSEN, cwd=tmp_path, env=env)
    assert answer.code == 2
    said = "was made by another version of the code (module acme_prune.small); overwrite=true makes it again"
    assert said in answer.err


def test_its_name_is_taken_for_new_stages(tmp_path: Path, installed: dict[str, str]) -> None:
    answer = pipeline("new-stage", "prune_small", "--dir", "mine", cwd=tmp_path, env=installed)
    assert answer.code == 2
    assert "a stage 'prune_small' is there already by the plugin acme-prune" in answer.err
    assert not (tmp_path / "mine").exists()


def test_a_plugin_whose_folder_is_missing_is_left_out_aloud(tmp_path: Path, installed: dict[str, str]) -> None:
    site = shutil.copytree(installed["PYTHONPATH"], tmp_path / "site")
    shutil.rmtree(site / "acme_prune" / "conf")
    answer = pipeline("plan", *MAIN, cwd=tmp_path, env={"PYTHONPATH": str(site)})
    assert answer.code == 0, answer.err
    assert "plugin 'acme-prune' names 'acme_prune.conf', which is not a folder; it is left out" in answer.err


def test_its_tracker_is_told(tmp_path: Path, installed: dict[str, str]) -> None:
    """Of a sweep, a run of it and what it found; a mistake of its name or of a field is explained like one of ours."""
    said = pipeline("-m", MAIN[0], "quant=mxfp4,int8", "tracker=notes", cwd=tmp_path, env=installed)
    assert said.code == 0, said.err
    assert re.search(r"tracked: notes in \S*outputs/notes.jsonl: 2 of 2 runs", said.err)
    lines = [json.loads(line) for line in (tmp_path / "outputs" / "notes.jsonl").read_text().splitlines()]
    begun = {of: given for what, of, given in lines if what == "begin"}
    [above] = [of for of, given in begun.items() if given["sweep"]]
    assert sorted(given["parent"] for given in begun.values()) == ["", above, above]
    assert {of: state for what, of, state in lines if what == "end"} == dict.fromkeys(begun, "complete")
    assert {name for what, _, given in lines if what == "log" for name, _, _ in given} >= {"size"}
    for typed, words in (
        ("tracker=note", "did you mean 'notes' or 'none'?"),
        ("tracker.fil=x", "did you mean 'file'?"),
    ):
        chosen = () if typed.startswith("tracker=") else ("tracker=notes",)
        answer = pipeline("plan", *MAIN, *chosen, typed, cwd=tmp_path, env=installed)
        assert answer.code == 2
        assert words in answer.err
    assert "there is no 'notes' in tracker" in pipeline("plan", *MAIN, "tracker=notes", cwd=tmp_path).err


def test_its_own_contract_test_passes(tmp_path: Path, installed: dict[str, str]) -> None:
    test = shutil.copy(SOURCE / "tests" / "test_contract.py", tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(test)]
    env = {**os.environ, **installed}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(r"\b\d+ passed", done.stdout)

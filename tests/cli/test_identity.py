"""What is done again after an edit, and what is not: a copy of the tree is edited, as people do it."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.cases import caches
from tests.cli.run import ROOT, Said, pipeline

HOW = ("+model=gpt_oss", "progress=false")
EVALUATE = (*HOW, "flow=evaluate", "quant=mxfp4", "evaluate.windows.tokens=64", "evaluate.windows.window=32")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    copy = tmp_path / "tree"
    for name in ("weightmill", "pipeline", "stages", "plugins", "conf", "hydra_plugins"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    caches.fresh(tmp_path / "cache")
    return tmp_path / "here"


def edit(tree: Path, name: str) -> None:
    with (tree / name).open("a") as file:
        file.write("\n# a comment\n")


def run(tree: Path | None, here: Path, *args: str) -> Said:
    """By that tree; by ours, which nobody edits, where there is none."""
    shared = () if args[0] == "gc" else ("paths.outputs=outputs",)
    env = {"XDG_CACHE_HOME": str(here.parent / "cache"), **({"PYTHONPATH": str(tree)} if tree else {})}
    said = pipeline(*args, *shared, cwd=here, env=env)
    assert "Traceback" not in said.err
    return said


def test_an_edit_redoes_what_can_reach_it_and_nothing_else(tree: Path, here: Path, thorough: bool) -> None:
    hf = (*HOW, "export=hf", "paths.run=hf")
    gguf = (*HOW, "export=gguf", "paths.run=gguf")
    assert {run(tree, here, *args).code for args in (hf, gguf)} == {0}
    for name in ("plugins/bench/mesh.py", "pipeline/reporting/console.py", "plugins/formats/gguf/packing.py"):
        edit(tree, name)
    assert "complete already, outputs verified" in run(tree, here, *hf).err
    said = run(tree, here, *gguf)
    assert said.code == 2  # and of the three the one that it reaches
    assert "gguf was made by another version of the code (module plugins.formats.gguf.packing); overwrite" in said.err
    elsewhere = run(
        tree, here, *HOW, "export=hf", "paths.run=copied"
    )  # and no other run of its key is made, but copied
    assert "export: from an earlier run" in elsewhere.out
    again = run(tree, here, *HOW, "export=gguf", "paths.run=again")
    assert (again.code, "from an earlier run" in again.out) == (0, False)
    edit(tree, "plugins/formats/gpt_oss/dialect.py")
    assert "module plugins.formats.gpt_oss.dialect" in run(tree, here, *hf).err
    if thorough:
        assert "module plugins.formats.gpt_oss.dialect" in run(tree, here, *gguf).err


def baselines(here: Path) -> int:
    return len([*(here / "outputs" / ".results").glob("*/states.npz")])


@pytest.mark.repeats
def test_a_repaired_dialect_reuses_no_stale_baseline(tree: Path, here: Path) -> None:
    text = here / "text.txt"
    text.write_text("The people of the United States, and their army and navy. " * 20)
    args = (*EVALUATE, f"evaluate.texts=[{text}]")
    assert run(tree, here, *args, "paths.run=first").code == 0
    assert baselines(here) == 1
    edit(tree, "plugins/formats/gguf/model.py")
    reused = run(tree, here, *args, "paths.run=second")
    assert "evaluate: from an earlier run" in reused.out
    edit(tree, "plugins/formats/gpt_oss/dialect.py")
    redone = run(tree, here, *args, "paths.run=third")
    assert (redone.code, "evaluate: from an earlier run" in redone.out) == (0, False)
    assert baselines(here) == 2


def test_why_and_gc(tree: Path, here: Path) -> None:
    args = (*HOW, "quant=mxfp4", "export=hf", "paths.run=hf")
    nothing = run(None, here, "why", *args)  # by ours, whose code the copy has
    assert nothing.code == 0
    assert "no earlier run has one" in nothing.out
    assert not (here / "hf").exists()
    assert run(None, here, *args).code == 0
    done = run(None, here, "why", *args)
    assert re.search("export +│ done +│", done.out)
    assert f"export: {here / 'hf/model'}" in done.out
    edit(tree, "stages/quantize.py")
    new = run(tree, here, "why", *args, "quant.scale_rule=even", "paths.run=other")
    for said in (
        "module stages.quantize",
        "field method.scale_rule: None → even",
        f"compared with {here / 'hf'}",
        "input checkpoint",
    ):
        assert said in new.out, new.out
    assert "every result belongs to a run" in run(None, here, "gc").out
    shutil.rmtree(here / "hf")
    listed = run(None, here, "gc")
    [result] = (here / "outputs" / ".results").iterdir()
    assert result.name in listed.out
    assert str(result.parent) in listed.out
    assert "gc --delete removes them" in listed.out
    assert result.is_dir()
    assert "removed" in run(None, here, "gc", "--delete").out
    assert not result.exists()
    wrong = run(None, here, "gc", "--delte")
    assert (wrong.code, "did you mean '--delete'" in wrong.err) == (2, True)


def test_an_export_whose_bytes_changed_is_not_copied(here: Path) -> None:
    args = (*HOW, "export=hf")
    assert run(None, here, *args, "paths.run=one").code == 0
    weights = sorted((here / "one" / "model").glob("*.safetensors"))[0]
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    two = run(None, here, *args, "paths.run=two")
    assert (two.code, "from an earlier run" in two.out) == (0, False)
    assert (here / "two" / "model" / weights.name).read_bytes()[-1] == content[-1] ^ 1
    three = run(None, here, *args, "export.path=three", "paths.run=three-run")
    assert "export: from an earlier run" in three.out
    assert (here / "three" / weights.name).read_bytes() == (here / "two" / "model" / weights.name).read_bytes()
    manifest = json.loads((here / "three-run" / "manifest.json").read_text())
    assert manifest["found"]["export"].startswith(str(here / "outputs" / ".results"))
    assert {Path(f["path"]).parent for f in manifest["outputs"]} == {here / "three"}
    four = run(None, here, *args, "export.path=three", "paths.run=four")  # where it is already
    assert "export: from an earlier run" in four.out

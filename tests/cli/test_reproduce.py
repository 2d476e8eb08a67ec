"""`reproduce RUN` runs it again elsewhere, and says what is not the same: which stage, tensor and metric."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run import Said, pipeline

MODEL = ("+model=gpt_oss", "quant=mxfp4", "progress=false")
EXPERTS = "model.layers.0.mlp.experts.gate_up_proj"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs, with one in it; it is copied by those that change it."""
    outputs = tmp_path_factory.mktemp("reproduce")
    said = pipeline(*MODEL, f"paths.outputs={outputs}", f"paths.run={outputs}/one")
    assert said.code == 0, said.err
    return outputs


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of the run, elsewhere than where it was made."""
    return Path(shutil.copytree(made / "one", tmp_path / "moved"))


def again(run: Path | str, *more: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> tuple[Said, Any]:
    """What is said, and what is kept of it."""
    base = run if isinstance(run, Path) else Path(cwd or ".")
    out = base.parent / "again"
    said = pipeline("reproduce", str(run), "--out", str(out), *more, env=env, **({"cwd": cwd} if cwd else {}))
    file = out / "reproduced.json"
    return said, json.loads(file.read_text()) if file.is_file() else None


def test_the_same(run: Path) -> None:
    """Also of a run whose folder was moved since, which is only read."""
    before = {f: (f.stat().st_mtime_ns, f.read_bytes()) for f in run.rglob("*") if f.is_file()}
    said, found = again(run)
    assert said.code == 0, said.err
    assert found["same"]
    assert found["counts"]["file"] == 5
    assert found["counts"]["error"] == 8
    assert not found["made_of"]
    assert "the same, bit for bit" in said.out
    assert before == {f: (f.stat().st_mtime_ns, f.read_bytes()) for f in run.rglob("*") if f.is_file()}


def test_nothing_is_taken_from_earlier_results(run: Path) -> None:
    said, _ = again(run)
    assert said.code == 0
    assert json.loads((run.parent / "again" / "run" / "manifest.json").read_text())["found"] == {}


def test_a_byte_that_was_changed_on_disk(run: Path) -> None:
    """The record still says what was written, and its tensor is named."""
    weights = run / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1000] ^= 1
    weights.write_bytes(content)
    said, found = again(run)
    assert said.code == 7
    assert not found["findings"]
    assert [f["kind"] for f in found["changed"]] == ["file", "tensor"]
    assert found["changed"][1]["name"] == "lm_head.weight"
    assert "changed on disk since then: 1 file, 1 tensor" in " ".join(said.out.split())


def test_another_library_in_the_record(run: Path) -> None:
    """It is said beside bits that are the same all the same."""
    for name in ("run.json", "manifest.json"):
        text = (run / name).read_text()
        was = json.loads((run / "manifest.json").read_text())["versions"]["numpy"]
        (run / name).write_text(text.replace(f'"{was}"', '"1.2.3"') if name == "run.json" else text)
    said, found = again(run)
    assert said.code == 0
    assert ["quantize", f"library numpy: 1.2.3 → {was}"] in found["made_of"]
    assert "library numpy" in said.out


def test_the_machine_of_the_record(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["environment"]["cpu"] = "abacus"
    manifest["environment"]["variables"]["XLA_FLAGS"] = "--xla_of_then"
    (run / "manifest.json").write_text(json.dumps(manifest))
    said, found = again(run)
    assert said.code == 0
    around = {what: then for what, then, _ in found["environment"]}
    assert around["cpu"] == "abacus"
    assert around["$XLA_FLAGS"] == "--xla_of_then"


def test_a_metric_of_the_record(run: Path) -> None:
    """By how much it is off, and the stage that it is of."""
    manifest = json.loads((run / "manifest.json").read_text())
    [row] = [row for row in manifest["tensors"] if row["name"] == EXPERTS]
    row["sq_error"] += 1
    (run / "manifest.json").write_text(json.dumps(manifest))
    said, found = again(run)
    assert said.code == 7
    [finding] = found["findings"]
    assert (finding["node"], finding["kind"], finding["name"]) == ("quantize", "error", EXPERTS)
    assert finding["off"] == pytest.approx(-1)
    assert found["first"] == "quantize"
    assert "made of the same" in said.out


def test_code_of_ones_own_that_changed(tmp_path: Path) -> None:
    """Names the stage, its module and the tensors; the folder of the code is known from the record."""
    mine = tmp_path / "mine"
    assert pipeline("new-method", "halves", "--dir", str(mine)).code == 0
    run = ("--config-dir", str(mine), "+model=gpt_oss", "quant=halves", "progress=false")
    assert pipeline(*run, f"paths.outputs={tmp_path}", f"paths.run={tmp_path}/one").code == 0
    said, found = again(tmp_path / "one")
    assert (said.code, found["same"]) == (0, True)
    code = mine / "plugins" / "quant" / "halves.py"
    code.write_text(code.read_text().replace("most = self.keep", "most = 0.99 * self.keep"))
    shutil.rmtree(tmp_path / "again")
    said, found = again(tmp_path / "one")
    assert said.code == 7
    assert found["first"] == "quantize"
    assert found["made_of"] == [["quantize", "module plugins.quant.halves"]]
    tensors = [f for f in found["findings"] if f["kind"] == "tensor"]
    assert tensors[0]["name"] == EXPERTS
    assert len(tensors) == 8
    assert all(f["node"] == "export" and f["off"] > 0 for f in tensors)
    shutil.move(mine, tmp_path / "gone")
    said, found = again(tmp_path / "one", "--config-dir", str(tmp_path / "nowhere"))
    assert (said.code, "no such folder" in said.err) == (2, True)
    said, found = again(tmp_path / "one")
    assert said.code == 2
    assert "--config-dir DIR says where" in " ".join(said.err.split())


def test_a_source_that_changed_or_is_gone(tmp_path: Path, made: Path) -> None:
    tiny = Path(json.loads((made / "one" / "manifest.json").read_text())["inputs"][0]["path"]).parent
    source = Path(shutil.copytree(tiny, tmp_path / "source"))
    said = pipeline(
        f"model.source={source}",
        "flow=convert",
        "progress=false",
        f"paths.outputs={tmp_path}",
        f"paths.run={tmp_path}/one",
    )
    assert said.code == 0, said.err
    config = source / "config.json"
    config.write_text(config.read_text() + "\n")
    said, found = again(tmp_path / "one")
    assert (said.code, found) == (4, None)
    assert "config.json: is no longer what one read" in " ".join(said.err.split())
    shutil.rmtree(source)
    said, _ = again(tmp_path / "one")
    assert said.code == 4
    assert "(gone)" in said.err
    assert not (tmp_path / "again").exists()


def test_a_run_that_is_not_complete(run: Path) -> None:
    (run / "manifest.json").unlink()
    said, found = again(run)
    assert (said.code, found) == (4, None)
    assert "is interrupted" in said.err


def test_records_that_lack_something(run: Path) -> None:
    config = run / "config.yaml"
    text = config.read_text()
    config.write_text("- a list\n")
    assert "is no config of ours" in again(run)[0].err
    config.write_text(text[: len(text) // 3])
    assert again(run)[0].code in (2, 4)
    config.unlink()
    assert "config.yaml: is gone" in again(run)[0].err


def test_what_was_typed_as_text(tmp_path: Path) -> None:
    """Commas, quotes and brackets, as a short verb has them; relative to where the run was started, and in a folder
    that is named so. The command is not asked, what it came to is."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a, b='c'.txt").write_text("Fellow citizens of the Senate. " * 40)
    typed = ("+model=gpt_oss", "flow=evaluate", "quant=mxfp4", """evaluate.texts=["texts/a, b='c'.txt"]""")
    said = pipeline(*typed, "progress=false", cwd=tmp_path)
    assert said.code == 0, said.err
    [run] = [f.parent for f in (tmp_path / "outputs").glob("*/manifest.json")]
    said, found = again(run.name, cwd=tmp_path)
    assert said.code == 0, said.err + said.out
    assert found["same"]
    assert found["counts"]["metric"] > 10
    assert "load_s" in found["left_out"]
    elsewhere = tmp_path / "somewhere"
    elsewhere.mkdir()
    shutil.rmtree(tmp_path.parent / "again", ignore_errors=True)
    said = pipeline("reproduce", str(run), "--out", str(tmp_path / "third"), cwd=elsewhere)
    assert said.code == 0, said.err


def test_jobs_of_a_sweep_and_exports_elsewhere(tmp_path: Path) -> None:
    """The export's own place is not written to again."""
    typed = (
        "-m",
        "+model=gpt_oss",
        "quant=mxfp4,int8",
        "flow=convert",
        f"export.path={tmp_path}/here-${{quant.element}}",
    )
    said = pipeline(*typed, "progress=false", f"paths.outputs={tmp_path}/outputs")
    assert said.code == 0, said.err
    runs = sorted(f.parent for f in (tmp_path / "outputs").glob("*/manifest.json"))
    assert len(runs) == 2
    exports = sorted(tmp_path.glob("here-*"))
    before = [f.stat().st_mtime_ns for export in exports for f in sorted(export.iterdir())]
    said, found = again(runs[0], "--out", str(tmp_path / "again"))
    assert said.code == 0, said.err
    assert found is None or found["same"]
    assert before == [f.stat().st_mtime_ns for export in exports for f in sorted(export.iterdir())]
    [sweep] = [f.parent for f in (tmp_path / "outputs").glob("*/sweep.csv")]
    assert pipeline("reproduce", str(sweep)).code in (2, 4)


def test_secrets_by_name(tmp_path: Path, made: Path) -> None:
    """They are taken from the environment again, and are in no record of either; a prompt that looks like one is the
    text that was typed."""
    tiny = Path(json.loads((made / "one" / "manifest.json").read_text())["inputs"][0]["path"]).parent
    link = tmp_path / "a-secret-place"
    link.symlink_to(tiny)
    typed = ("model.source=${oc.env:A_SECRET}", "flow=generate", "prompt=${oc.env:NOT_ONE}", "sampling.max_tokens=4")
    where = (f"paths.outputs={tmp_path}", f"paths.run={tmp_path}/one", "progress=false")
    said = pipeline(*typed, *where, env={"A_SECRET": str(link)})
    assert said.code == 0, said.err
    said, found = again(tmp_path / "one")
    assert (said.code, found) == (2, None)
    assert "took A_SECRET from the environment, and it is not set" in " ".join(said.err.split())
    said, found = again(tmp_path / "one", env={"A_SECRET": str(link)})
    assert (said.code, found["same"]) == (0, True), said.err + said.out
    config = (tmp_path / "again" / "run" / "config.yaml").read_text()
    assert "source: ${oc.env:A_SECRET}" in config


def test_credentials_that_no_record_has(run: Path) -> None:
    config = run / "config.yaml"
    config.write_text(re.sub("    source: .*", "    source: https://***@there/model", config.read_text()))
    said, found = again(run)
    assert (said.code, found) == (2, None)
    assert "credentials that records leave out" in " ".join(said.err.split())


@pytest.mark.repeats
def test_a_training(tmp_path: Path) -> None:
    """Every update is compared; weights that were not exported too, as they are among the results."""
    pytest.importorskip("sklearn")
    typed = ("experiment=digits", "stages=[init,train]", "train.steps=4", "train.look.every=2", "progress=false")
    said = pipeline(*typed, f"paths.outputs={tmp_path}", f"paths.run={tmp_path}/one")
    assert said.code == 0, said.err
    said, found = again(tmp_path / "one")
    assert (said.code, found["same"]) == (0, True), said.err
    assert found["counts"]["update"] > 20
    assert "seconds" in found["left_out"]
    rows = [json.loads(line) for line in (tmp_path / "one" / "metrics.jsonl").read_text().splitlines()]
    strange = next(row for row in rows if row["kind"] == "train" and row["step"] == 3)
    strange["loss"] += 0.5
    (tmp_path / "one" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [weights] = (tmp_path / ".results").glob("*/*.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    shutil.rmtree(tmp_path / "again")
    said, found = again(tmp_path / "one")
    assert said.code == 7
    assert [f["name"] for f in found["findings"] if f["kind"] == "update"] == ["train/loss after update 3"]
    assert [f["node"] for f in found["findings"] if f["kind"] == "tensor"] == ["train"]
    assert found["first"] == "train"


@pytest.mark.parametrize(
    ("typed", "said", "code"),
    [
        ((), "which run?", 2),
        (("nowhere",), "is called so (allowed: one)", 4),
        (("one", "--ot", "x"), "there is no such option; did you mean '--out'", 2),
        (("one", "two"), "which run?", 2),
        (("one", "--out", "one"), "there is something already", 5),
    ],
)
def test_what_was_mistyped(made: Path, typed: tuple[str, ...], said: str, code: int) -> None:
    found = pipeline("reproduce", *typed, f"paths.outputs={made}", cwd=made)
    assert found.code == code
    assert said in " ".join(found.err.split())


def test_tables_fit(run: Path) -> None:
    """With everything to say at once."""
    test_a_metric_of_the_record(run)
    shutil.rmtree(run.parent / "again")
    said = pipeline("reproduce", str(run), "--out", str(run.parent / "b"), env={"COLUMNS": "80"})
    assert said.code == 7
    assert all(len(line) <= 80 for line in said.out.splitlines() if not line.startswith("/"))


def test_killed_and_begun_anew(run: Path) -> None:
    """What a killed one leaves is in nobody's way: the next has a folder of its own."""
    outputs = run.parent
    (outputs / "reproduced" / run.name / "run").mkdir(parents=True)
    said = pipeline("reproduce", run.name, f"paths.outputs={outputs}")
    assert said.code == 0, said.err
    assert (outputs / "reproduced" / f"{run.name}-2" / "reproduced.json").is_file()

"""Everything that was read is an input: what changed is noticed, by what it holds, and no baseline outlives it."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import xxhash

import pipeline as weightmill
from pipeline.api import _composed
from pipeline.errors import SourceError
from pipeline.events import Events
from pipeline.records.run import read
from pipeline.running.runner import execute
from tests.cli.run import ROOT
from tests.cli.run import pipeline as command

TINY = ROOT / "plugins" / "models" / "gpt_oss" / "tiny"
TEXT = "evaluate.texts=[text.txt]"
SHORT = ["flow=evaluate", TEXT, "evaluate.windows.tokens=96", "evaluate.windows.window=32", "evaluate.windows.batch=2"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("The state of the Union is what the people of it make of it. " * 12)
    return tmp_path


@pytest.fixture
def own(here: Path) -> Path:
    """A source that a test may spoil; weights are links, and cost nothing."""
    folder = here / "own"
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    for weights in TINY.glob("*.safetensors"):
        os.link(weights, folder / weights.name)
    (folder / "vocab.json").write_text("{}")  # carried, and read by nobody
    return folder


def run(*overrides: str) -> Any:
    return weightmill.run(["+model=gpt_oss", "progress=false", *overrides])


def edit(path: Path, old: str, new: str) -> None:
    """Another content of the same size and time, as a careful editor or `rsync --times --size-only` leaves it."""
    before = path.stat()
    assert len(old) == len(new)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def digest(path: Path) -> str:
    return xxhash.xxh3_128_hexdigest(path.read_bytes())


CHANGES = {
    "config.json": ('"rope_theta": 150000.0', '"rope_theta": 100000.0'),
    "tokenizer.json": ('"add_prefix_space": false', '"add_prefix_space":  true'),  # another first token
    "tokenizer_config.json": ("\n", " "),
    "generation_config.json": ('"eos_token_id": 1', '"eos_token_id": 2'),
    "model.safetensors.index.json": ("\n", " "),
    "vocab.json": ("{}", "[]"),
}


def test_every_file_is_an_input_and_is_known_by_what_it_holds(own: Path, here: Path) -> None:
    convert = ("flow=convert", "quant=mxfp4", f"model.source={own}", "paths.run=run")
    report = run(*convert)
    inputs = {Path(i["path"]).name: i["xxh3_128"] for i in report.inputs}
    weights = [p.name for p in own.glob("*.safetensors")]
    assert set(inputs) == {*CHANGES, *weights}
    assert inputs == {n: digest(own / n) for n in inputs}
    manifest = json.loads((here / "run" / "manifest.json").read_text())
    assert manifest["inputs"] == report.inputs
    for name in CHANGES:
        os.utime(own / name, ns=(1, 1))
    assert run(*convert).reused, "touched, and not changed"
    for name, (old, new) in CHANGES.items():
        path = own / name
        content = path.read_bytes()
        edit(path, old, new)
        with pytest.raises(SourceError, match=f"^{path}: changed since the run in {here / 'run'} began; overwrite"):
            run(*convert)
        path.write_bytes(content)
    assert run(*convert).reused
    (own / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(SourceError, match=f"{own / 'chat_template.jinja'}: changed since"):
        run(*convert)
    (own / "generation_config.json").unlink()
    with pytest.raises(SourceError, match=r"generation_config\.json \(gone\): changed since"):
        run(*convert)
    page = weightmill.report.html(read(here / "run"), here / "run")
    assert page.is_file()
    again = run(*convert, "overwrite=true")
    assert not again.reused
    assert not page.exists()  # it is about what was there before
    written = {p.name for p in (here / "run" / "model").iterdir()}
    assert "chat_template.jinja" in written
    assert "generation_config.json" not in written


def test_the_command_line_says_which_file_changed(own: Path, here: Path) -> None:
    args = ("+model=gpt_oss", "flow=convert", f"model.source={own}", "paths.run=run", "digest_inputs=false")
    assert command(*args, cwd=here).code == 0
    inputs = json.loads((here / "run" / "manifest.json").read_text())["inputs"]
    assert {Path(i["path"]).suffix for i in inputs if i["xxh3_128"] is None} == {".safetensors"}
    edit(own / "config.json", *CHANGES["config.json"])
    said = command(*args, cwd=here)
    assert said.code == 4
    assert f"{own / 'config.json'}: changed since the run in {here / 'run'} began; overwrite=true" in said.err
    assert "complete already" not in said.err
    planned = command("plan", *args, cwd=here)
    assert f"{own / 'config.json'}: changed since the run" in planned.err


def test_a_companion_that_changes_during_a_run(own: Path, here: Path) -> None:
    def spoil(label: str, nbytes: int, reused: bool) -> None:
        edit(own / "vocab.json", "{}", "[]")

    with (
        _composed(["+model=gpt_oss", "flow=convert", f"model.source={own}", "dask.workers=1"], None) as (config, _),
        pytest.raises(SourceError, match=f"{own / 'vocab.json'}: changed while it was being read"),
    ):
        execute(config, here / "run", [], Events(chunk=spoil))
    assert not (here / "run" / "model").exists()
    assert not (here / "run" / "manifest.json").exists()


def test_a_tokenizer_that_changes_during_an_evaluation(own: Path, here: Path) -> None:
    """No result, and no baseline that would be found when the tokenizer is put back."""
    path = own / "tokenizer.json"
    content, args = path.read_bytes(), (*SHORT, f"model.source={own}", "quant=mxfp4")

    def spoil(text: str) -> None:
        edit(path, *CHANGES["tokenizer.json"])

    with (
        _composed(["+model=gpt_oss", *args], None) as (config, _),
        pytest.raises(SourceError, match=f"{path}: changed while it was being read"),
    ):
        execute(config, here / "run", [], Events(text=_once(spoil)))
    assert not [*(here / "outputs").rglob("result.json")]
    path.write_bytes(content)
    with (
        _composed(["+model=gpt_oss", *args], None) as (config, _),
        pytest.raises(SourceError, match=f"{here / 'text.txt'}: changed while it was being read"),
    ):
        execute(config, here / "run", [], Events(text=_once(lambda _: edit(here / "text.txt", "state", "stake"))))


def _once(do: Any) -> Any:
    left = [do]
    return lambda text: left.pop()(text) if left else None


def test_texts_and_templates_are_inputs(here: Path) -> None:
    (here / "template.jinja").write_text("{{ messages[0]['content'] }}")
    evaluate = (*SHORT, "quant=mxfp4", "paths.run=run", "tokenizer.chat_template=template.jinja")
    report = run(*evaluate)
    read = {Path(i["path"]) for i in report.inputs}
    assert {here / "text.txt", here / "template.jinja", TINY / "tokenizer.json", TINY / "config.json"} <= read
    for name, old, new in (("text.txt", "Union", "union"), ("template.jinja", "content", "context")):
        content = (here / name).read_bytes()
        edit(here / name, old, new)
        with pytest.raises(SourceError, match=f"{here / name}: changed since the run"):
            run(*evaluate)
        (here / name).write_bytes(content)  # another time, the same content
        assert run(*evaluate).reused


def figures(*overrides: str) -> Any:
    return run(*SHORT, *overrides).results["evaluate"]["texts"]["text.txt"]


@pytest.mark.repeats
def test_a_baseline_is_of_the_config_and_the_tokenizer_it_was_made_with(own: Path, here: Path) -> None:
    """`rope_theta` edited: the change that is said is that of quantization, not that of the model."""
    args = ("quant=mxfp4", f"model.source={own}")
    before = figures(*args, "paths.run=before")["baseline_perplexity"]
    for number, (name, old, new) in enumerate(
        (
            ("config.json", '"rope_theta": 150000.0', '"rope_theta": 100.0000'),
            ("tokenizer.json", *CHANGES["tokenizer.json"]),
        )
    ):
        edit(own / name, old, new)
        kept = figures(*args, f"paths.run=run{number}-kept")
        fresh = figures(*args, f"paths.run=run{number}-fresh", f"paths.outputs=fresh{number}")
        assert kept == fresh, name
        assert fresh["baseline_perplexity"] != before, name
        before = fresh["baseline_perplexity"]

    def baselines() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in (here / "outputs" / ".results").glob("*/states.npz")}

    assert len(baselines()) == 3  # before and after each change
    edit(here / "text.txt", "people", "Peoria")
    fresh = figures(*args, "paths.run=text")
    records = baselines()
    assert len(records) == 4
    for path in (own / "config.json", here / "text.txt"):
        os.utime(path, ns=(1, 1))
    assert figures(*args, "paths.run=touched") == fresh
    assert baselines() == records

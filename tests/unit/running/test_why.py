"""`why` names what is new, whatever kind of change it is."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pipeline.api import compose_run
from pipeline.files import write_json
from pipeline.planning import code
from pipeline.planning.memory import plan_run
from pipeline.running.description import describe
from pipeline.running.results import FOLDER, Results
from pipeline.running.why import Reason, reasons

WEIGHTS = "model-00001-of-00003.safetensors"
TINY = Path(__file__).parents[3] / "plugins/models/gpt_oss/tiny"


@dataclass
class Before:
    """A run that was, and where it read."""

    outputs: Path
    source: Path
    text: Path
    monkeypatch: pytest.MonkeyPatch
    composed: dict[tuple[str, ...], Any] = field(default_factory=dict)
    edited: bool = False  # the code, of which a process otherwise asks once

    def ask(self, *overrides: str) -> dict[str, Reason]:
        if self.edited:
            as_in_another_process()
        plan = plan_run(self.config(*overrides), self.outputs / "now", fetch=False)
        return {r.node: r for r in reasons(plan, self.outputs, Results(self.outputs / FOLDER))}

    def config(self, *overrides: str) -> Any:
        if overrides not in self.composed:
            self.composed[overrides] = self._compose(*overrides)
        return self.composed[overrides]

    def _compose(self, *overrides: str) -> Any:
        where = (f"model.source={self.source}", f"evaluate.texts=[{self.text}]", f"paths.outputs={self.outputs}")
        return compose_run(["+model=gpt_oss", "quant=mxfp4", *where, *overrides])

    def edit_code(self, name: str) -> None:
        self.edited, read = True, code.Sources.read

        def edited(sources: code.Sources, path: Path) -> code.Source:
            found = read(sources, path)
            return replace(found, digest="0" * 32) if str(path).endswith(name) else found

        self.monkeypatch.setattr(code.Sources, "read", edited)

    def update(self, library: str) -> None:
        self.edited, real = True, code.version_of
        self.monkeypatch.setattr(code, "version_of", lambda name: "99.9" if name == library else real(name))

    def put_beside(self, folder: str, file: str) -> None:
        self.edited, real = True, code._beside

        def beside(place: Path) -> dict[str, str]:
            return real(place) | ({file: "0" * 32} if str(place).endswith(folder) else {})

        self.monkeypatch.setattr(code, "_beside", beside)


@pytest.fixture
def before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Before]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(TINY, tmp_path / "own")
    (tmp_path / "text.txt").write_text("The people of the United States")
    found = Before(tmp_path / "outputs", tmp_path / "own", tmp_path / "text.txt", monkeypatch)
    plan = plan_run(found.config(), tmp_path / "outputs/then", fetch=False)
    assert not plan.problems
    (tmp_path / "outputs/then").mkdir(parents=True)
    write_json(tmp_path / "outputs/then/run.json", asdict(describe(plan, plan.keys, lambda file: None)))
    yield found
    monkeypatch.undo()
    if found.edited:
        as_in_another_process()


def as_in_another_process() -> None:
    for kept in (code._reach, code._said):
        kept.cache_clear()


def append(path: Path, content: bytes = b" ") -> None:
    path.write_bytes(path.read_bytes() + content)


OPTIONS = {
    "quant.scale_rule=even": ("quantize", "field method.scale_rule: None → even"),
    "seed=1": ("quantize", "field method.seed: 0 → 1"),
    "engine.device=gpu": ("evaluate", "field engine.device: auto → gpu"),
    "kernels=xla": ("quantize", "field method.quantize.backends: ['native', 'numpy', 'reference'] → ['xla'"),
    "export=original": ("export", "resolved dialect._target_: plugins.formats.safetensors.hugging_face."),
}  # fmt: skip
DIALECT = "plugins/formats/gpt_oss/dialect.py"
Change = Callable[[Before], Any]
CHANGES: dict[str, tuple[Change, str, str]] = {
    "tokenizer": (lambda b: append(b.source / "tokenizer.json"), "load", "file tokenizer.json"),
    "new file": (lambda b: (b.source / "merges.txt").touch(), "load", "file merges.txt (new)"),
    "text": (lambda b: append(b.text), "evaluate", "file text.txt"),
    "weights": (lambda b: (b.source / WEIGHTS).touch(), "load", f"file {WEIGHTS}"),
    "dialect": (lambda b: b.edit_code(DIALECT), "load", "module plugins.formats.gpt_oss.dialect"),
    "engine": (lambda b: b.edit_code("plugins/engine/score.py"), "evaluate", "module plugins.engine.score"),
    "library": (lambda b: b.update("numpy"), "load", f"library numpy: {metadata.version('numpy')} → 99.9"),
    "C++": (lambda b: b.put_beside("quantize", "t.cpp"), "quantize", "module plugins.kernels.quantize/t.cpp (new)"),
}


@pytest.mark.parametrize("override", OPTIONS)
@pytest.mark.brief("quant.scale_rule=even", "engine.device=gpu", "export=original")
def test_an_option_that_is_new_is_named(before: Before, override: str) -> None:
    named(before, before.ask(override), *OPTIONS[override])


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.brief("new file", "text", "weights", "engine", "library", "C++")
def test_a_change_is_named(before: Before, kind: str) -> None:
    change, node, said = CHANGES[kind]
    change(before)
    named(before, before.ask(), node, said)


def named(before: Before, found: dict[str, Reason], node: str, said: str) -> None:
    """The change is said of the first stage that it is about, and later ones take another input."""
    assert any(str(d).startswith(said) for d in found[node].new), [str(d) for d in found[node].new]
    assert found[node].against == str(before.outputs / "then")
    assert next(n for n, r in found.items() if r.new) == node
    for name in ("export", "evaluate", "generate"):
        if node in ("load", "quantize"):
            assert "input checkpoint" in [str(d) for d in found[name].new]


def test_what_is_the_same_says_so(before: Before) -> None:
    found = before.ask()
    for name in ("load", "decode", "quantize"):
        assert (found[name].state, found[name].where) == ("a view", f"as in {before.outputs / 'then'}")
    assert {n: r.state for n, r in found.items() if r.state != "a view"} == dict.fromkeys(
        ("export", "evaluate", "generate"), "to do"
    )
    assert not [d for r in found.values() for d in r.new]
    assert {n: r.open for n, r in found.items() if r.open} == {"evaluate": ("engine",), "generate": ("engine",)}


def test_the_nearest_is_compared_with(before: Before) -> None:
    plan = plan_run(before.config("quant.scale_rule=even"), before.outputs / "even", fetch=False)
    (before.outputs / "even").mkdir()
    write_json(before.outputs / "even/run.json", asdict(describe(plan, plan.keys, lambda file: None)))
    found = before.ask("quant.scale_rule=even", "quant.ties=away")["quantize"]
    assert found.against == str(before.outputs / "even")
    assert [str(d) for d in found.new] == ["field method.ties: None → away"]


def test_stages_that_are_as_near_to_several_runs_are_held_against_the_one_that_is_nearest_as_a_whole(
    before: Before,
) -> None:
    plan = plan_run(before.config("quant=nvfp4", "export=auto", "seed=3"), before.outputs / "far", fetch=False)
    (before.outputs / "far").mkdir()  # the newest, and its export differs from what is asked in its input alone, too
    write_json(before.outputs / "far/run.json", asdict(describe(plan, plan.keys, lambda file: None)))
    found = before.ask("quant.scale_rule=even")
    assert {r.against for r in found.values() if r.new} == {str(before.outputs / "then")}

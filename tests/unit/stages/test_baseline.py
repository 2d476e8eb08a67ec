"""A baseline is one machine's and one backend's: whoever evaluates on another computes its own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.digest import described
from pipeline.engine import NOTHING, Against, Score, Usage, Windows
from pipeline.planning.identity import node_keys
from pipeline.planning.wiring import make_plan
from pipeline.running import text_stream
from pipeline.running.results import FOLDER, Results
from pipeline.running.tasks import run_stage
from pipeline.stage import Checkpoint, Context, Footprint
from pipeline.training import TRAINED
from stages.evaluate import Evaluate, Evaluated
from tests.cases.memory_store import MemoryStore

loads: list[str] = []
"""Which checkpoint each model was made of."""

titles: list[str] = []
"""What the tables of evaluations are called."""

heads: list[str] = []
"""Files of heads that were written."""


class Tokenizer:
    def encode(self, text: str) -> list[int]:
        return [*text.encode()]


class Model:
    tokenizer = Tokenizer()
    facts: Mapping[str, Any] = {"device": "fake", "device_nbytes": 1, "activations": "f32"}

    def score(self, ids: Any, windows: Windows, *, keep: Path | None, against: Against | None) -> Score:
        if keep is not None:
            np.savez(keep, ids=np.array(ids))
        assert against is None or (against.states.exists() and against.head.read_bytes() == b"the head")
        return Score(len(ids), len(ids) - 1, 1.5, 0.1 if against else None, 0.9 if against else None, 0.1, 0.0)

    def keep_head(self, path: Path | None) -> str:
        if path is not None:
            heads.append(path.name)
            path.write_bytes(b"the head")
        return "the head"


@dataclass(frozen=True)
class Fake:
    """An engine; where it runs is found out in the run."""

    device: str = "auto"
    backends: tuple[str, ...] = ("xla",)

    def identity(self) -> dict[str, str]:
        return {"device": here}

    def plan(
        self, checkpoint: Checkpoint, *, text: bool = True, plain: bool = False, usage: Usage = NOTHING
    ) -> Footprint:
        return Footprint(1, 1)

    def load(self, checkpoint: Checkpoint, *, plain: bool = False) -> Model:
        loads.append("quantized" if checkpoint.config else "baseline")
        return Model()


here = "cpu (cpu)"


@dataclass(frozen=True)
class Load:
    origin: str = ""

    def run(self, ctx: Context) -> Checkpoint:
        return Checkpoint(MemoryStore({"w": np.zeros((2, 3), "f4")}), origin=self.origin)


@dataclass(frozen=True)
class Decode:
    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint


@dataclass(frozen=True)
class Quantize:
    by: float = 1.0

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        return replace(checkpoint.map(Scaled(self.by), "*"), config={"quantized": True})


@dataclass(frozen=True)
class Scaled:
    by: float

    def __call__(self, x: Any) -> Any:
        return x * self.by


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    loads.clear()
    titles.clear()
    heads.clear()
    monkeypatch.setattr(f"{__name__}.here", "cpu (cpu)")


def evaluated(
    folder: Path, *, by: float = 1.0, engine: Fake | None = None, text: str = "t.txt", origin: str = "", **windows: int
) -> list[str]:
    """Which models an evaluation loads."""
    before = len(loads)
    evaluation(folder, by=by, engine=engine, text=text, origin=origin, **windows)
    return loads[before:]


def evaluation(
    folder: Path, *, by: float = 1.0, engine: Fake | None = None, text: str = "t.txt", origin: str = "", **windows: int
) -> Evaluated:
    """What it finds."""
    (folder / text).touch()
    if not (folder / text).read_text():
        (folder / text).write_text("The people")
    evaluate = Evaluate(engine or Fake(), (str(folder / text),), Windows(**windows))
    stages = {"load": Load(origin), "decode": Decode(), "quantize": Quantize(by), "evaluate": evaluate}
    run = SimpleNamespace(nodes={n: described(s) for n, s in stages.items()}, spine=SimpleNamespace(seed=0))
    plan = make_plan(stages, Context(folder, results=Results(folder / FOLDER)))
    assert not plan.problems
    node = plan.nodes["evaluate"]
    inputs = [plan.nodes[source].result for source in node.inputs.values()]
    made = run_stage(
        "evaluate", evaluate, None, plan.context, None, plan.inputs, tuple(node.inputs), Evaluated,
        node_keys(run, plan), *inputs,  # type: ignore[arg-type]
    )  # fmt: skip
    assert isinstance(made.value, Evaluated)
    titles.extend(table.title for table in made.value.tables)
    return made.value


def test_one_baseline_for_all_that_quantize_the_same(tmp_path: Path) -> None:
    assert evaluated(tmp_path) == ["baseline", "quantized"]
    assert evaluated(tmp_path) == []  # the evaluation itself is there
    assert evaluated(tmp_path, by=2.0) == ["quantized"]
    assert evaluated(tmp_path, by=2.0, text="same.txt") == ["quantized"]  # the content counts, which is the same


def test_a_table_says_where_before_is_after_training(tmp_path: Path) -> None:
    evaluated(tmp_path)
    assert titles == ["Perplexity", "On the device"]
    evaluated(tmp_path, origin=TRAINED)
    assert titles[2] == "Perplexity; before: trained, as it is before it is quantized"


@pytest.mark.repeats
def test_another_device_backend_or_window_shares_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert evaluated(tmp_path) == ["baseline", "quantized"]
    assert evaluated(tmp_path, by=2.0, engine=Fake(device="cpu")) == ["quantized"]  # asked for otherwise, the same here
    monkeypatch.setattr(f"{__name__}.here", "gpu (H100)")
    assert evaluated(tmp_path) == ["baseline", "quantized"]
    assert evaluated(tmp_path, engine=Fake(device="cpu")) == []
    monkeypatch.setattr(f"{__name__}.here", "cpu (cpu)")
    assert evaluated(tmp_path) == []
    assert evaluated(tmp_path, engine=replace(Fake(), backends=("reference",))) == ["baseline", "quantized"]
    assert evaluated(tmp_path, window=7) == ["baseline", "quantized"]


def test_one_head_for_all_texts_and_windows_of_a_model(tmp_path: Path) -> None:
    """What is kept of a text are its states; a head that was lost is written again."""
    evaluated(tmp_path)
    (tmp_path / "other.txt").write_text("Another text")
    evaluated(tmp_path, text="other.txt")
    evaluated(tmp_path, window=7)
    assert heads == ["head.npz"]
    assert len([*(tmp_path / FOLDER).glob("*/states.npz")]) == 3
    [head] = (tmp_path / FOLDER).glob("*/head.npz")
    head.write_bytes(b"the heap")
    evaluated(tmp_path, by=2.0)
    assert heads == ["head.npz", "head.npz"]
    assert head.read_bytes() == b"the head"


@pytest.mark.parametrize(("nll", "shown"), [(float("nan"), "nan"), (float("inf"), "inf"), (1e4, "inf"), (1.5, "")])
def test_a_model_that_gives_no_number_is_warned_of(
    nll: float, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it runs and in a table; a perplexity that no double holds is infinite, and no error."""
    score = Model.score

    def broken(self: Model, ids: Any, windows: Windows, *, keep: Path | None, against: Against | None) -> Score:
        return replace(score(self, ids, windows, keep=keep, against=against), nll=nll if against else 1.5)

    monkeypatch.setattr(Model, "score", broken)
    said: list[str] = []
    with text_stream.to(said.append):
        found = evaluation(tmp_path)
    text = f"t.txt: the model has a perplexity of {shown}: look for NaN and infinity in its weights"
    assert [t.rows for t in found.tables if t.title == "Warnings"] == ([((text,),)] if shown else [])
    assert (f"warning: {text}" in "".join(said)) == bool(shown)
    assert str(found.figures["perplexity"]) == (shown or "4.482")

"""The benchmark of training for packed weights: what its commands find is read from what they leave."""

from pathlib import Path

import pytest

from pipeline.api import compose_run
from pipeline.planning.memory import plan_run
from plugins.bench import recipes
from tests.cases.model_runs import quick_environment

ADAPTED = [(f"data.files=[{recipes.MOBY}]", "stages=[load,decode,train]", *how) for how in recipes.ADAPTERS.values()]
ROUNDED = [(*stages, f"quant={scheme}") for stages in ((recipes.ROUNDED,), recipes.QAT) for scheme in recipes.SCHEMES]


@pytest.mark.repeats
def test_a_recipe_is_run_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in quick_environment().items():
        monkeypatch.setenv(name, value)
    short = ["train.steps=2", "train.batch=2", "data.length=16", "train.look.examples=2", "evaluate.windows.tokens=64"]
    found = recipes.ran([*recipes.DATA, *recipes.QAT, "quant=int4", *short], tmp_path)
    assert found.tokens == 2 * 2 * 16
    assert len(found.held_out) == 2
    assert all(1 < divergence < 1.1 for divergence in found.held_out)  # exp of it, from the model as it was
    assert 10 < found.perplexity < 1000
    with pytest.raises(SystemExit, match="quant=nonsense"):
        recipes.ran(["quant=nonsense", "stages=[load]"], tmp_path)


@pytest.mark.parametrize("settings", [*ADAPTED, recipes.WHOLE, *ROUNDED], ids=" ".join)
def test_every_row_fits_the_embedded_model(settings: tuple[str, ...], tmp_path: Path) -> None:
    made = compose_run(["+model=gpt_oss", *recipes.DATA, *settings, f"paths.run={tmp_path}"])
    assert plan_run(made, tmp_path, fetch=False).problems == []

"""The benchmark of training for packed weights: what its commands find is read from what they leave."""

from pathlib import Path

import pytest

from plugins.bench import recipes


def test_a_recipe_is_run_and_read(tmp_path: Path) -> None:
    short = ["train.steps=2", "train.batch=2", "data.length=16", "train.look.examples=2", "evaluate.windows.tokens=64"]
    found = recipes.ran([*recipes.DATA, *recipes.QAT, "quant=int4", *short], tmp_path)
    assert found.tokens == 2 * 2 * 16
    assert len(found.held_out) == 2
    assert all(1 < divergence < 1.1 for divergence in found.held_out)  # exp of it, from the model as it was
    assert 10 < found.perplexity < 1000
    with pytest.raises(SystemExit, match="quant=nonsense"):
        recipes.ran(["quant=nonsense", "stages=[load]"], tmp_path)

"""The benchmark of two minutes of training: it trains what the experiment does, and its table has what was found."""

from pathlib import Path

import pytest

from plugins.bench import learn


def test_a_training_is_run_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["train.steps=3", "train.batch=2", "train.look.examples=2"]
    trained = learn.learnt([*learn.TRAINED, *short, "data.length=32"], tmp_path / "a")
    assert len(trained.updates) == 3
    assert trained.updates[0]["tokens"] == 2 * 32
    assert 1000 < trained.perplexity < 10000  # of 4,096 tokens, hardly trained

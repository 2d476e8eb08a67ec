"""The benchmark of two minutes of training trains as the experiment does, and its table has what was found."""

from dataclasses import replace
from typing import Any

import pytest

import pipeline.api as api
from plugins.bench import learn


def stages(overrides: list[str]) -> dict[str, Any]:
    with api._composed(overrides, None) as (config, _):
        return dict(config.stages)


def test_it_trains_as_the_experiment_does() -> None:
    ours = stages([*learn.TRAINED, *learn.EVALUATED, "train.steps=3"])
    whole = stages(["+experiment=tiny_gpt_oss"])["train"]
    assert list(ours) == ["init", "train", "decode", "evaluate"]
    assert ours["train"] == replace(whole, trainer=replace(whole.trainer, steps=3))
    assert list(stages([*learn.EMBEDDED, *learn.EVALUATED])) == ["load", "decode", "evaluate"]


def test_the_table_has_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    figure = {"kind": "figure", "stage": "evaluate", "name": "perplexity"}
    updates = [{"kind": "train", "step": i, "tokens": 4096, "seconds": s} for i, s in enumerate((9.0, 0.4, 0.4), 1)]
    trained = learn.Learnt(
        [*updates, {"kind": "held_out", "loss": 5.0}, {**figure, "value": 123.25}], 60.0, 2 << 20, 0.5
    )
    flops = learn.operations(16, 256) / 0.1
    learn.show(trained, learn.Learnt([{**figure, "value": 68.5}], 9.0, 1 << 20, 0.5), flops)
    table = capsys.readouterr().out
    assert all(said in table for said in ("123.250", "68.500", "12,288", "10,240 tokens/s", "limit 0.100 s, 25%"))

"""The benchmark of two minutes of training trains as the experiment does, and its table has what was found."""

import pytest

import pipeline.api as api
from plugins.bench import learn


def composed(overrides: list[str]) -> object:
    with api._composed([*overrides, *learn.EVALUATED], None) as (config, _):
        return config


def test_it_trains_as_the_experiment_does() -> None:
    ours, whole = composed([*learn.TRAINED, "train.steps=3"]), composed(["+experiment=tiny_gpt_oss"])
    assert list(ours.stages) == ["init", "train", "decode", "evaluate"]  # type: ignore[attr-defined]
    assert ours.train.steps == 3  # type: ignore[attr-defined]
    ours.train.steps = whole.train.steps  # type: ignore[attr-defined]
    assert (ours.train, ours.data) == (whole.train, whole.data)  # type: ignore[attr-defined]
    assert list(composed(learn.EMBEDDED).stages) == ["load", "decode", "evaluate"]  # type: ignore[attr-defined]


def test_the_table_has_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    figure = {"kind": "figure", "stage": "evaluate", "name": "perplexity"}
    updates = [{"kind": "train", "step": i, "tokens": 4096, "seconds": s} for i, s in enumerate((9.0, 0.4, 0.4), 1)]
    trained = learn.Learnt(
        [*updates, {"kind": "held_out", "loss": 5.0}, {**figure, "value": 123.25}], 60.0, 2 << 20, 0.5
    )
    flops = learn.operations(16, 256) / 0.1
    learn.show(trained, learn.Learnt([{**figure, "value": 68.5}], 9.0, 1 << 20, 0.5), flops)
    table = capsys.readouterr().out
    assert all(said in table for said in ("123.250", "68.500", "12,288", "10,240 tokens/s", "limit 0.100 s, 25 %"))

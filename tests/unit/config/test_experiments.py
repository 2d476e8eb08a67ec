"""The experiments that ship compose, and none is trained on what it is judged by; what those of others lack is said."""

from pathlib import Path

import pytest

from pipeline.api import _composed
from pipeline.config.options import CONF
from pipeline.errors import WeightmillError
from tests.cases.guests import guest

EXPERIMENTS = sorted(path.stem for path in Path(CONF, "experiment").glob("*.yaml"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_composes_and_is_judged_by_other_files(name: str) -> None:
    with _composed([f"+experiment={name}"], None) as (config, _):
        assert {"init", "train"} <= set(config.stages)
        data, evaluate = config.tree["data"], config.tree["evaluate"]
        trained = {*data.get("files", ()), data.get("images")} - {None}
        apart = {*data.get("held_out_files", ()), data.get("held_out_images")} - {None}
        assert apart or data["held_out"] > 0
        assert not trained & {*apart, *evaluate["texts"]}


@pytest.mark.parametrize(
    ("defaults", "said"),
    [
        ("", "model: a file that says model.source chooses its family too, by `- /model: NAME`"),
        ("defaults: [override /model: llama]", "experiment=mine: experiment/mine.yaml overrides model, which has no "),
    ],
)
def test_a_file_that_says_a_source_says_its_family(defaults: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    model = f"# @package _global_\n{defaults}\nmodel: {{source: {tmp_path}}}\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(model)
    with guest(tmp_path, {}), pytest.raises(WeightmillError) as caught, _composed(["experiment=mine"], tmp_path):
        pass
    assert str(caught.value).startswith(said)

"""The experiments that ship compose, and none is trained on what it is judged by."""

from pathlib import Path

import pytest

from pipeline.api import _composed
from pipeline.config.options import CONF

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

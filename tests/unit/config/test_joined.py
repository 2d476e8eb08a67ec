"""Maps of plugins: what an installed package, a folder of one's own or a plus on the command line adds comes first."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.api import compose_run
from pipeline.config import extend
from pipeline.config.joined import joined
from pipeline.config.options import CONF
from pipeline.errors import ConfigError
from tests.cases.guests import guest

DIALECT = """from dataclasses import dataclass

from plugins.formats.safetensors.plain import Plain


@dataclass(frozen=True)
class Mine(Plain):
    word: str = "mine"
"""
FAMILY = """from dataclasses import dataclass

from plugins.models.llama.family import Llama


@dataclass(frozen=True)
class Mine(Llama):
    pass
"""


def names(plugins: Any) -> list[str]:
    return [type(p).__name__ for p in plugins]


def test_ours_are_maps_and_asked_in_their_order() -> None:
    run = compose_run(["+model=gpt_oss", "flow=evaluate"])
    load: Any = run.stages["load"]
    assert names(load.containers) == ["SafeTensors", "GgufContainer", "Npy", "Orbax"]
    assert names(load.dialects)[-1] == "Plain"
    assert names(load.families) == names(run.stages["evaluate"].engine.families)  # type: ignore[attr-defined]


def test_a_file_in_a_folder_joins_and_comes_first(tmp_path: Path) -> None:
    for kind in ("dialects", "families"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "mine.yaml").write_text(f"_target_: plugins.mine_{kind}.Mine\n")
    (tmp_path / "dialects" / "mine.yaml").write_text("_target_: plugins.mine_dialects.Mine\nword: ${export.dtype}\n")
    with guest(tmp_path, {"plugins.mine_dialects": DIALECT, "plugins.mine_families": FAMILY}):
        run = compose_run(["+model=gpt_oss", "flow=evaluate"], config_dir=tmp_path)
        load: Any = run.stages["load"]
        assert names(load.dialects)[0] == "Mine"
        assert load.dialects[0].word == "keep"
        assert names(load.families)[0] == names(run.stages["evaluate"].engine.families)[0] == "Mine"  # type: ignore[attr-defined]
    assert extend.VARIABLE
    assert names(compose_run(["+model=gpt_oss"]).stages["load"].dialects)[0] != "Mine"  # type: ignore[attr-defined]


def test_the_command_line_adds_and_takes_out() -> None:
    typed = [
        "+stages.load.dialects.again._target_=plugins.formats.safetensors.plain.Plain",
        "stages.load.dialects.gguf=null",
    ]
    load: Any = compose_run(["+model=gpt_oss", *typed]).stages["load"]
    assert names(load.dialects)[0] == "Plain"
    assert "GgufDialect" not in names(load.dialects)


def test_an_export_joins_what_auto_asks_after_ours(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    text = """defaults:
  - hf
  - _self_
dialect: {_target_: plugins.mine_export.Mine, word: "${quant.packed}"}
max_shard_size: 1GB
nothing_of_an_export: 1
"""
    (tmp_path / "export" / "mine.yaml").write_text(text)
    (tmp_path / "export" / "asks.yaml").write_text("defaults: [auto, _self_]\n")
    with guest(tmp_path, {"plugins.mine_export": DIALECT}):
        export: Any = compose_run(["+model=gpt_oss", "flow=convert"], config_dir=tmp_path).stages["export"]
        without = compose_run(["+model=gpt_oss", "flow=evaluate"], config_dir=tmp_path)
        assert "export" not in without.stages
        assert compose_run(["+model=gpt_oss", "flow=convert", "export=mine"], config_dir=tmp_path)
    ours: Any = compose_run(["+model=gpt_oss", "flow=convert"]).stages["export"]
    assert [*export.options] == [*ours.options, "mine"]
    assert export.prefer == (*ours.prefer, "mine")
    mine = export.options["mine"]
    assert (type(mine.dialect).__name__, mine.dialect.word, mine.max_shard_size) == ("Mine", "keep", "1GB")
    assert type(mine.container) is type(ours.options["hf"].container)
    (tmp_path / "export" / "mine.yaml").write_text(text.replace("- hf", "- hff"))
    with guest(tmp_path, {}), pytest.raises(ConfigError, match="export=hff: there is no such option"):
        compose_run(["+model=gpt_oss", "flow=convert"], config_dir=tmp_path)


def test_a_file_that_is_no_plugin_is_named(tmp_path: Path) -> None:
    (tmp_path / "remotes").mkdir()
    (tmp_path / "remotes" / "mine.yaml").write_text("scheme: s3\n")
    with pytest.raises(ConfigError, match=r"remotes/mine\.yaml: is not one of remotes"):
        joined({}, [CONF, tmp_path])

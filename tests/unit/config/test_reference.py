"""What `explain` and the pages of the configuration say is what conf/ has."""

from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from pipeline.config import extend, reference
from pipeline.config.options import CONF
from pipeline.config.resolvers import register
from pipeline.errors import ConfigError
from pipeline.reporting import reference as shown

STRUCTURE = ("_target_", "_partial_")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the folder of a user that another test has named."""
    monkeypatch.delenv(extend.VARIABLE, raising=False)


def leaves(node: Any, prefix: str) -> dict[str, Any]:
    if not isinstance(node, dict) or not node or not all(str(k).isidentifier() for k in node):
        return {prefix: node}
    found: dict[str, Any] = {}
    for key, value in node.items():
        if key not in STRUCTURE:
            found |= leaves(value, f"{prefix}.{key}")
    return found


@pytest.mark.parametrize("option", ["quant=mxfp4", "quant=nf4", "train=qlora", "evaluate=perplexity", "dask=threads"])
def test_settings_are_those_that_hydra_composes(option: str) -> None:
    group, _, name = option.partition("=")
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        whole: Any = OmegaConf.to_container(compose("config", ["+model=gpt_oss", option]), resolve=False)
    found = reference.find(group, name)
    assert found
    elsewhere = [inner.replace("/", ".") for inner in reference.groups() if inner.startswith(f"{group}/")]
    composed = {
        key: value
        for key, value in leaves(whole[group], group).items()
        if not any(key == other or key.startswith(f"{other}.") for other in elsewhere)
    }
    ours = {s.key: s.default for s in found.settings}
    ours = {k: v for k, v in ours.items() if not any(k.startswith(f"{other}.") for other in elsewhere)}
    assert {*ours} == {*composed}
    plain = {key: value for key, value in composed.items() if isinstance(value, str | int | bool | None)}
    assert len(plain) > 3
    for key, value in plain.items():
        assert yaml.safe_load(ours[key]) == value, key


def test_every_option_says_what_it_is() -> None:
    silent = [o.typed for group in reference.groups() for o in reference.options(group) if not o.says]
    assert silent == []
    cut = [o.typed for o in reference.options("stages") if not o.says.endswith((".", "=DIR"))]
    assert cut == []  # what a class says of itself goes on to the end of the paragraph


@pytest.mark.parametrize("group", ["quant", "evaluate", "train", "train/optimizer", "export", "dask", "sampling"])
def test_every_setting_that_is_set_says_what_it_is(group: str) -> None:
    rows = shown.setting_rows(group)
    said = {row.key for row in rows if row.says}
    silent = {row.key for row in rows} - said
    silent = {key for key in silent if not key.startswith("train.optimizer.") or group != "train"}  # said there
    assert silent <= {
        "dask.scheduler", "dask.threads_per_worker", "quant.element", "train.optimizer.eps", "export.dialect",
        "export.container",
    }  # fmt: skip
    assert len(said) >= 3


def test_the_comment_beside_a_value_is_not_part_of_it() -> None:
    found = {s.key: s for s in reference.spine().settings}
    assert (found["seed"].default, found["seed"].says) == ("0", "of everything random")
    assert found["prompts"].says == """or several, for one batch: prompts='["One text", "Another"]'"""


def test_an_option_of_the_user_s_is_explained_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "quant").mkdir()
    head = '# Mine: "#" is no comment.\n_target_: plugins.quant.blockwise.Blockwise\n'
    text = f'{head}element: "#1"  # a #2\nties:\n  # even\n'
    (tmp_path / "quant/mine.yaml").write_text(text)
    monkeypatch.setenv(extend.VARIABLE, str(tmp_path))
    found = reference.find("quant", "mine")
    assert found
    assert found.says == 'Mine: "#" is no comment.'
    [element, ties] = found.settings
    assert (element.default, element.says) == ("#1", "a #2")
    assert ties.allowed == "even, zero, away, down, up or null"


@pytest.mark.parametrize(
    ("key", "keys"),
    [
        ("quant.scale_rule", {"quant.scale_rule"}),
        ("train.save", {"train.save.every", "train.save.seconds", "train.save.keep"}),
        ("sampling=greedy", {s.key for s in o.settings} if (o := reference.find("sampling", "greedy")) else set()),
        ("+model.rules", {"model.rules"}),
        ("sensitivity", {"sensitivity.by", "sensitivity.nearest", "sensitivity.text", "sensitivity.windows"}),
        ("greedy", {s.key for s in o.settings} if (o := reference.find("sampling", "greedy")) else set()),
    ],
)
def test_names_are_found_as_they_are_typed(key: str, keys: set[str]) -> None:
    assert {s.key for _, s in reference.explained(key).settings} == keys


def test_a_setting_is_shown_by_its_key() -> None:
    keys = [row.key for row in shown.rows(reference.explained("sensitivity").settings)]
    assert keys == ["sensitivity.by", "sensitivity.text", "sensitivity.nearest", "sensitivity.windows"]
    alone = shown.explained_tables(reference.explained("train.save.every"))[0]
    assert "setting" not in alone.columns
    one = shown.explained_tables(reference.explained("histogram"))[0]
    assert "setting" in one.columns, "of which only what is below it is a setting"


def test_what_others_call_an_option_leads_to_ours() -> None:
    with pytest.raises(ConfigError, match="here that is q3_k"):
        reference.explained("q3_k_s")
    autos = [o.typed for o in reference.explained("auto").options]
    assert autos == ["export=auto", "kernels=auto", "quant=auto", "tokenizer=auto"]


def test_a_value_for_a_group_of_settings_leads_to_one_of_them() -> None:
    assert reference.below("sensitivity", "role").startswith("; did you mean sensitivity.by=role? (allowed: ")
    assert reference.below("sensitivity", "nothing").startswith(" (allowed: ")


@pytest.mark.parametrize("key", ["train/optimizer", "train.optimizer"])
def test_a_group_says_its_options_and_the_one_it_begins_with(key: str) -> None:
    found = reference.explained(key)
    assert [o.name for o in found.options] == ["adamw", "lion", "muon", "sgd"]
    assert found.chosen
    assert found.chosen.name == "adamw"


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("quant.scalerule", "'quant.scale_rule'"),
        ("quant=mxpf4", "'mxfp4'"),
        ("qaunt", "'quant'"),
        ("train.optimizer.rat", "'train.optimizer.rate'"),
        ("sed", "'seed'"),
    ],
)
def test_what_is_not_there_is_said_with_the_nearest(key: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"explain {key}: there is no .*did you mean {near}"):
        reference.explained(key)


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int, "a whole number"),
        (Literal["a", "b"] | None, "a, b or null"),
        (tuple[float, ...], "a list of: a number"),
        (dict[str, int], "a mapping"),
        (int | str, "a whole number or text"),
        (Any, ""),
    ],
)
def test_types_in_words(hint: Any, words: str) -> None:
    assert reference.in_words(hint) == words

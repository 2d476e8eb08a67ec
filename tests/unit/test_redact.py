"""Credentials in addresses and values from the environment are in no text; what they change still counts."""

from pathlib import Path

import pytest

from pipeline import redact
from pipeline.api import compose_run
from pipeline.config.names import run_name
from pipeline.errors import PlanError, SourceError
from pipeline.planning.memory import plan_run
from pipeline.redact import hide, identified, learn, tree

SECRET = "correct horse battery"


@pytest.fixture(autouse=True)
def _nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_values", {})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://joe:pw@host/a/b", "https://***@host/a/b"),
        ("https://:p'@w@host", "https://***@host"),
        ("see 'https://TOKEN@host:80/x', or http://h/", "see 'https://***@host:80/x', or http://h/"),
        ("tls://u:p@h:1 tcp://h:1", "tls://***@h:1 tcp://h:1"),
        ("https://h/x?sig=a%2Fb&Date=1#token=c d=e", "https://h/x?sig=***&Date=***#token=*** d=e"),
        ("https://h/a&b=c?TOKEN https://h/?a=b&c", "https://h/a&b=c?*** https://h/?a=***&***"),
        ("near://x@1 git+https://t@h s3://k:s@h", "near://x@1 git+https://***@h s3://***@h"),
        ("hf://owner/name@main/x.gguf", "hf://owner/name@main/x.gguf"),
        ("https://${oc.env:U}:${oc.env:P}@h?t=${oc.env:T}", "https://${oc.env:U}:${oc.env:P}@h?t=${oc.env:T}"),
        ("https://${oc.env:U}:pw@h", "https://***@h"),
        ("a@b.c k=v ?x=y", "a@b.c k=v ?x=y"),
    ],
)  # fmt: skip
def test_addresses(text: str, shown: str) -> None:
    assert hide(text) == shown
    assert hide(shown) == shown


def test_values_are_called_by_their_variable(tmp_path: Path) -> None:
    here, quoted = str(tmp_path), 'a"b\\c\nd'
    values = {"A": SECRET, "B": f"{SECRET} staple", "PLACE": here, "NUMBER": "123456789", "SHORT": "bf16", "Q": quoted}
    learn({**values, "BELOW": "/tmp/not/there/yet", "NAME": "ablation"}, places=["outputs/ablation-7"])  # noqa: S108  never made
    assert hide(f"{SECRET}, {SECRET} staple") == "${oc.env:A}, ${oc.env:B}"
    assert hide(f"{quoted!r} {quoted}") == "'${oc.env:Q}' ${oc.env:Q}"
    same = f"{here}/x 1234567890 bf16 /tmp/not/there/yet ablation"
    assert hide(same) == same
    assert tree({"a": [SECRET, 1, None]}) == {"a": ["${oc.env:A}", 1, None]}


def test_the_token_of_the_hub_is_always_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    learn({})
    assert str(SourceError("401 for hf_abcdefgh at https://u:p@h")) == "401 for ${oc.env:HF_TOKEN} at https://***@h"


def test_a_digest_stands_for_what_is_not_said() -> None:
    given = {"_target_": "${oc.env:T}", "a": ["${oc.env:X}", 1], "b": "${oc.env:N}"}
    one = identified(given, {"_target_": "stages.load.Load", "a": [SECRET, 1], "b": {"c": 1}})
    two = identified(given, {"_target_": "stages.load.Load", "a": [f"{SECRET}!", 1], "b": {"c": 1}})
    assert SECRET not in str(one)
    assert one["_target_"] == "stages.load.Load"
    assert one["a"][0]["given"] == "${oc.env:X}"
    assert one["a"][1] == 1
    assert one["a"] != two["a"]
    assert one["b"] == two["b"]
    assert identified({"a": 1}, {"a": True}) != {"a": 1}


HOW = ["+model=gpt_oss", "flow=convert"]


def test_a_config_is_recorded_by_name_and_built_by_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DATA", str(tmp_path))
    monkeypatch.setenv("EP", f"https://joe:{SECRET}@host")
    monkeypatch.setenv("N", "3")
    args = [
        *HOW, "model.source=${oc.env:DATA}/x", "hub.endpoint=${oc.env:EP}", 'dask.workers="${oc.decode:${oc.env:N}}"',
        "hub.cache=${oc.env:NONE,down}",
    ]  # fmt: skip
    run = compose_run(args)
    assert run.stages["load"].source == f"{tmp_path}/x"
    assert run.stages["load"].remotes[0].endpoint == f"https://joe:{SECRET}@host"
    assert run.stages["load"].remotes[0].cache == "down"
    assert run.spine.dask.workers == 3
    assert run.tree["model"]["source"] == "${oc.env:DATA}/x"
    assert run.tree["stages"]["load"]["source"] == "${oc.env:DATA}/x"
    assert run.tree["hub"]["endpoint"] == run.tree["stages"]["load"]["remotes"][0]["endpoint"] == "${oc.env:EP}"
    assert run.nodes["load"]["source"]["given"] == "${oc.env:DATA}/x"
    assert not any(s in str((run.tree, run.nodes)) for s in (SECRET, str(tmp_path)))
    monkeypatch.setenv("DATA", f"{tmp_path}2")
    other = compose_run(args)
    assert other.tree == run.tree
    assert other.nodes["load"]["source"]["digest"] != run.nodes["load"]["source"]["digest"]
    key = plan_run(run, tmp_path, fetch=False).keys["load"]
    assert not any(s in str(key.parts) for s in (SECRET, str(tmp_path)))
    monkeypatch.setenv("EP", "https://other")
    assert plan_run(compose_run(args), tmp_path, fetch=False).keys["load"].id == key.id  # who is asked changes nothing


def test_what_one_run_learned_changes_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    before = compose_run([*HOW, "model.source=safetensors"])
    monkeypatch.setenv("WORD", "safetensors")
    compose_run([*HOW, "model.source=${oc.env:WORD}"])
    assert hide("safetensors") == "${oc.env:WORD}"
    assert compose_run([*HOW, "model.source=safetensors"]) == before
    assert run_name(["+model=gpt_oss", "model.source=safetensors"]) == "gpt_oss-model.source=safetensors"


def test_credentials_typed_are_not_recorded() -> None:
    run = compose_run([*HOW, "hub.endpoint='https://joe:pw@h?token=t'", "model.source='https://joe:pw@h/m?sig=s'"])
    assert run.tree["hub"]["endpoint"] == "https://***@h?token=***"
    assert run.nodes["load"]["source"]["given"] == "https://***@h/m?sig=***"
    assert run.stages["load"].source == "https://joe:pw@h/m?sig=s"


def test_an_error_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RULE", SECRET)
    with pytest.raises(PlanError) as why:
        compose_run([*HOW, "quant=mxfp4", "quant.scale_rule=${oc.env:RULE}"])
    assert SECRET not in str(why.value)
    assert "'${oc.env:RULE}' is not a choice" in str(why.value)


def test_a_variable_that_is_not_set_is_an_error() -> None:
    with pytest.raises(PlanError, match="the environment variable 'NOT_SET_ANYWHERE', which is not set"):
        compose_run([*HOW, "model.source=${oc.env:NOT_SET_ANYWHERE}"])


def test_a_folder_is_not_named_after_a_token() -> None:
    name = run_name(["+model=llama", "model.source='https://joe:pw@h/m?sig=hunter2'"])
    assert "hunter2" not in name
    assert "pw" not in name

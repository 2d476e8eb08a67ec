"""What people type: prompts and paths as they are, and the model that a source holds."""

import io
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from safetensors.numpy import save_file

from pipeline import prompts
from pipeline.api import _composed, compose_run
from pipeline.config.model_types import model_types
from pipeline.config.options import CONF
from pipeline.config.overrides import as_typed, for_jobs
from pipeline.errors import ConfigError, PlanError
from pipeline.planning.memory import plan_run
from pipeline.planning.model_choice import model_option, with_model

GRAMMAR = "\\'\"${}[](),=: ~+-abc1.é—\n\t\r#*?|/@%^&;!<>`"
TINY = CONF.parent / "plugins" / "models" / "gpt_oss" / "tiny"


def composed(override: str) -> Any:
    """What an override comes to: parsed, and followed as OmegaConf follows it; and as a sweep hands it to a job."""
    parsed = OverridesParser.create().parse_override(override)
    assert not parsed.is_sweep_override()
    again = OverridesParser.create().parse_override(f"{parsed.get_key_element()}={parsed.get_value_element_as_str()}")
    found = [OmegaConf.create({"value": p.value(), "way": "${value}"}).way for p in (parsed, again)]
    assert found[0] == found[1]
    return found[0]


@settings(max_examples=300)
@given(st.text(st.one_of(st.sampled_from(GRAMMAR), st.characters(exclude_categories=["Cs"])), max_size=12))
@example("\\${x}")
@example("\\\\${x}'\\")
@example("[INST] a, b [/INST]")
@example("  -m 1e3")
@example("1e3")
@example("null")
@example("a,b")
@example("choice(a,b)")
def test_a_prompt_is_taken_as_typed(text: str) -> None:
    assert composed(as_typed([f"prompt={text}"])[0]) == text


def test_what_hydra_takes_as_it_is_stays_as_it_is() -> None:
    """So that a run's name does too."""
    plain = ["prompt=The state of the Union", "quant=mxfp4,none", "--config-dir", "job", "-m", "model.rules=[{a: b}]"]
    assert as_typed(plain) == plain


@pytest.mark.parametrize("name", ["a=b", "a b", "it's", "a,b", "${x}", "\\", "1e3", "~x"])
def test_a_path_that_exists_is_taken_as_typed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = as_typed([f"a={name}"])[0]
    (tmp_path / name).mkdir()
    assert composed(as_typed([f"a=./{name}"])[0]) == f"./{name}"
    assert wrong == f"a={name}"


def test_a_number_stays_one_where_a_folder_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And either is what the setting is of."""
    monkeypatch.chdir(tmp_path)
    for name in ("2", "1_0", "1", "true", "null"):
        (tmp_path / name).mkdir()
    assert as_typed(["a=2", "prompt=2", "a=1_0"]) == ["a=2", "prompt='2'", "a='1_0'"]
    same = ["a=1", "a=true", "a=null"]
    assert as_typed(same) == same
    run = compose_run(["+model=gpt_oss", "evaluate.windows.batch=2", "paths.outputs=2"])
    assert (run.stages["evaluate"].windows.batch, run.spine.paths.outputs) == (2, "2")


def test_a_path_that_cannot_be_is_left_to_the_rest() -> None:
    long = "a=" + "x" * 5000
    assert as_typed([long, "b=~nobody_of_this_name/x"]) == [long, "b=~nobody_of_this_name/x"]


def prompt_of(*overrides: str) -> Any:
    """By the composition of the command line's Python twin."""
    with _composed(["+model=gpt_oss", "flow=generate", *overrides, "paths.run=x"], None) as (config, _):
        return config.stages["generate"].prompt


TEXT = 'One, "two" = {three}: $4 ${five} [six] \\7 é — \n\n'


def test_prompts_reach_the_stage(tmp_path: Path) -> None:
    assert prompt_of(f"prompt={TEXT}") == TEXT
    assert compose_run(["+model=gpt_oss", "flow=generate", f"prompt={TEXT}"]).stages["generate"].prompt == TEXT
    assert prompt_of("prompt=-m") == "-m"
    assert prompt_of("""prompts=["One, two", 'it\\'s', 3]""") == ("One, two", "it's", "3")
    file = tmp_path / "a, b.txt"
    file.write_text(TEXT)
    assert prompt_of(f"prompt_file={file}") == TEXT.removesuffix("\n")
    assert prompt_of() == "The state of the Union"


def test_standard_input_is_a_prompt_that_names_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts._stdin.cache_clear()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{TEXT}\r\n".encode())))
    assert composed(as_typed(["prompt_file=-"])[0]) == TEXT
    assert prompt_of("prompt_file=-") == TEXT  # read once
    prompts._stdin.cache_clear()


@pytest.mark.parametrize(("content", "said"), [
    (None, "No such file"), (b"\xff", "utf-8"), (b"x" * (prompts.MOST_NBYTES + 1), "larger than 16.0 MiB")
], ids=["missing", "bytes", "large"])  # fmt: skip
def test_files_that_are_no_prompts(content: bytes | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "p").write_bytes(content)
    with pytest.raises(PlanError, match=f"prompt_file=.*/p: .*{said}") as why:
        prompt_of(f"prompt_file={tmp_path / 'p'}")
    assert why.value.exit_code == 2


@pytest.mark.parametrize(("overrides", "said"), [
    (["prompt="], "an empty text"),
    (["prompts=[]"], "an empty text"),
    (["prompts=One text"], "prompts='One text': a list is expected"),
    (["prompt=a", "prompt_file=b"], "prompt and prompt_file: one of them"),
    (["prompts=[a]", "+prompt=a"], "prompt and prompts: one of them"),
    (["prompt=\udcff"], "no UTF-8"),
])  # fmt: skip
def test_what_cannot_be_continued(overrides: list[str], said: str) -> None:
    with pytest.raises((ConfigError, PlanError), match=said):
        prompt_of(*overrides)


def checkpoint(folder: Path, model_type: Any, **more: Any) -> Path:
    folder.mkdir(parents=True)
    save_file({"x": np.zeros((2, 2), np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, **more}))
    return folder


OPTIONS = {
    "llama": "llama", "mistral": "llama", "ministral": "llama", "qwen2": "qwen", "qwen3": "qwen",
    "qwen3_moe": "qwen_moe", "gemma3_text": "gemma3",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "option"), OPTIONS.items())
def test_the_model_is_what_config_json_says(kind: str, option: str, tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "a", kind)
    typed = ["quant=int8", f"model.source={source}", "model.rules=[]"]
    assert with_model(typed, fetch=False) == ["quant=int8", f"+model={option}", *typed[1:]]
    assert model_types()[kind] == option


def test_the_same_run_whether_it_is_detected_or_named() -> None:
    source = f"model.source={TINY}"
    detected = with_model([source, "quant=mxfp4"], fetch=False)
    assert detected == with_model(["model=gpt_oss", source, "quant=mxfp4"], fetch=False)
    assert detected == with_model(detected, fetch=False) == ["+model=gpt_oss", source, "quant=mxfp4"]
    assert compose_run([source]) == compose_run(["+model=gpt_oss", source]) == compose_run(["model=gpt_oss", source])


def test_a_swept_source_is_left_to_the_jobs() -> None:
    assert with_model(["model.source=a,b", "model.rules=[]"], fetch=False) == ["++model.source=a,b", "++model.rules=[]"]
    job = with_model([f"++model.source={TINY}", "++model.rules=[]"], fetch=False)
    assert job == ["+model=gpt_oss", f"model.source={TINY}", "model.rules=[]"]
    assert with_model(["model=a,b"], fetch=False) == ["+model=a,b"]


def test_a_source_may_be_an_interpolation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_SOURCE", str(TINY))
    assert with_model(["model.source=${oc.env:THE_SOURCE}"], fetch=False)[0] == "+model=gpt_oss"
    with pytest.raises(ConfigError, match="with model=NAME it can be looked up later"):
        with_model(["model.source=${a}"], fetch=False)


def test_sources_that_do_not_say_what_they_are(tmp_path: Path) -> None:
    strange = checkpoint(tmp_path / "strange", "lama")
    with pytest.raises(ConfigError, match=r"model_type is 'lama'.*did you mean 'llama'.*model\.model_types=\[lama\]"):
        model_option(str(strange))
    silent = checkpoint(tmp_path / "silent", None)
    with pytest.raises(ConfigError, match=r"model=NAME does \(allowed: .*qwen_moe"):
        model_option(str(silent))
    with pytest.raises(PlanError, match=r"no such file or folder.*did you mean 'silent'"):
        model_option(str(tmp_path / "silen"))
    with pytest.raises(ConfigError, match=r"model\.rules=\[\]: no model chosen; model\.source=DIR"):
        with_model(["model.rules=[]"], fetch=False)


def test_options_of_the_users_own_are_found_too(tmp_path: Path) -> None:
    (tmp_path / "mine" / "model").mkdir(parents=True)
    text = "source: ???\nmodel_types: [lama, llama]\nroles: {}\nrules: []\n"
    (tmp_path / "mine" / "model" / "my_lama.yaml").write_text(text)
    strange = checkpoint(tmp_path / "strange", "lama")
    assert model_option(str(strange), config_dir=tmp_path / "mine") == "my_lama"
    assert model_types(tmp_path / "mine")["llama"] == "llama"  # ours stay what they are
    assert "model.rules" not in with_model([f"model.source={strange}"], fetch=False, config_dir=tmp_path / "mine")
    (tmp_path / "mine" / "model" / "broken.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match=r"broken\.yaml: cannot be read"):
        model_types(tmp_path / "mine")


def test_a_model_that_is_another_is_refused(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "a", "llama")

    def problems(*overrides: str) -> list[str]:
        return [str(p) for p in plan_run(compose_run([*overrides, f"model.source={source}"]), tmp_path).problems]

    [said] = problems("+model=qwen", "quant=mxfp4")
    assert said == (
        f"model: the option that was chosen is for model_type qwen2 and qwen3, and the config.json of {source} says "
        "'llama'; model=llama is for it, and is chosen when model= is left out"
    )
    assert problems("model=smollm2", "stages=[load]") == []
    assert problems("model=qwen", "model.model_types=[llama]", "stages=[load]") == []
    (source / "config.json").write_text('{"model_type": "lama"}')
    assert "no option is for that, and model.model_types=[lama] applies" in problems("model=gpt_oss")[0]


@pytest.mark.parametrize(("line", "offered"), [
    (f"weightmill model.source={TINY} quant=mxf", "quant=mxfp4"),
    (f"weightmill plan model.source={TINY} model.sour", "model.source="),
    ("weightmill model=gpt_oss model.ru", "model.rules."),
    ("weightmill plan model=gpt_o", "model=gpt_oss"),
    ("weightmill model.source=/nowhere quant=mxf", "quant=mxfp4"),
    ("weightmill qua", "quant="),
])  # fmt: skip
def test_shells_complete(
    line: str, offered: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from pipeline import __main__ as command_line

    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setattr(sys, "argv", ["weightmill", "-sc", "query=bash"])
    with pytest.raises(SystemExit) as end:
        command_line.main()
    assert end.value.code == 0
    assert offered in capfd.readouterr().out.split()


def test_options_of_what_is_swept_are_of_the_jobs() -> None:
    given = ["-m", "+model=gpt_oss", "quant=int8,int4", "quant.search=mse", "quant.ties=even,down", "export.dtype=fp32"]
    assert for_jobs(given) == [*given[:3], "quant.search=choice(mse)", *given[4:]]
    assert for_jobs(["quant=int8", "quant.search=mse"]) == ["quant=int8", "quant.search=mse"]
    assert for_jobs(["quant=a,b", "~quant.search", "+quant.x=[1,2]"])[1:] == ["~quant.search", "+quant.x=choice([1,2])"]


def test_several_threads_compose() -> None:
    """There is one Hydra in a process."""
    asked = [
        ["+model=gpt_oss", "flow=convert", f"quant={name}", f"seed={n}"] for n, name in enumerate(("int4", "int8"))
    ]
    with ThreadPoolExecutor(2) as several:
        assert [run.spine.seed for run in several.map(compose_run, [*asked, *asked])] == [0, 1, 0, 1]


def test_what_is_composed_leaves_hydra_to_others() -> None:
    with _composed(["+model=gpt_oss", "flow=convert", "paths.run=x"], None) as (config, _):
        assert config.stages
        assert not GlobalHydra.instance().is_initialized()


def test_a_folder_that_is_called_like_an_option_hides_it_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("llama", "mine"):
        (tmp_path / name).mkdir()
    with pytest.raises(PlanError, match="; the option of that name is model=llama"):
        with_model(["model.source=llama"], fetch=False)
    with pytest.raises(PlanError) as why:
        with_model(["model.source=mine"], fetch=False)
    assert "option of that name" not in str(why.value)

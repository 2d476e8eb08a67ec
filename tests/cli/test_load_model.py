"""`pipeline.load_model`: a model to ask, without a run."""

import json
from pathlib import Path

import pytest

import pipeline as weightmill
from pipeline.errors import ConfigError, PlanError, SourceError
from tests.cases import two_layers
from tests.cli.test_flows import run, small, without_tokenizer


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_load_model_in_a_notebook(here: Path) -> None:
    report = small("flow=convert", "quant=mxfp4", "progress=false")
    again = small("flow=convert", "quant=mxfp4", "progress=false")
    assert again.reused
    assert not report.reused
    assert again.outputs == report.outputs
    packed = weightmill.load_model(Path(report.run) / "model")
    plain = weightmill.load_model(two_layers.folder(), quant="mxfp4")
    assert packed.facts["device_nbytes"] == plain.facts["device_nbytes"]
    text = packed.generate("The state of the Union", max_tokens=10)
    assert str(text) == text.text == plain.generate("The state of the Union", max_tokens=10).text
    many = packed.generate(["The people", "Our navy"], max_tokens=4)
    assert [len(m.completion.tokens) for m in many] == [4, 4]
    ids = packed.tokenizer.encode("The people")
    assert packed.generate(ids, max_tokens=4).text == many[0].text
    with pytest.raises(ConfigError, match="a list of them is expected"):
        weightmill.run("+model=gpt_oss")
    with pytest.raises(ConfigError, match=r"no option 'max_token'.*did you mean 'max_tokens'"):
        packed.generate("The people", max_token=3)
    with pytest.raises(ConfigError, match=r"stop=' of': a list of texts"):
        packed.generate("The people", stop=" of")
    with pytest.raises(ConfigError, match="max_tokens='4': a number"):
        packed.generate("The people", max_tokens="4")
    with pytest.raises(SourceError, match="chat template"):
        packed.generate([{"role": "user", "content": "Hello"}])
    with pytest.raises(PlanError, match="no such file"):
        weightmill.load_model(here / "nowhere")


def test_load_model_takes_what_generate_takes(here: Path) -> None:
    run("flow=convert", "export.dtype=fp32", "paths.run=wide", "progress=false")
    generated = run("model.source=wide/model", "flow=generate", "sampling.max_tokens=1", "progress=false")
    assert generated.results["generate"]["facts"]["device_nbytes"] == 2 * 5_107_032
    assert weightmill.load_model(here / "wide" / "model").facts["device_nbytes"] == 2 * 5_107_032
    wide = weightmill.load_model(here / "wide" / "model", overrides=["stages.decode.dtype=keep"])
    assert wide.facts["device_nbytes"] == 4 * 5_107_032


def test_load_model_without_a_tokenizer(here: Path) -> None:
    """Prompts of ids need none; what ends a text is in config.json too; a tokenizer that is broken is not none."""
    whole = weightmill.load_model(two_layers.folder())
    ids = whole.tokenizer.encode("The people")
    source = without_tokenizer(here / "bare")
    bare = weightmill.load_model(source)
    found = bare.generate([ids, ids[:2]], max_tokens=5)
    assert [m.completion.tokens for m in found] == [
        m.completion.tokens for m in whole.generate([ids, ids[:2]], max_tokens=5)
    ]
    for prompt in ("The people", [{"role": "user", "content": "Hello"}]):
        with pytest.raises(SourceError, match=r"bare .*has no tokenizer \(looked for: tokenizer.json, "):
            bare.generate(prompt)
    with pytest.raises(SourceError, match="has no tokenizer"):
        bare.generate(ids, stop=["a"])
    end = found[0].completion.tokens[2]
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [end]}))
    ended = weightmill.load_model(source).generate(ids, max_tokens=5).completion
    assert (ended.finish, len(ended.tokens)) == ("end", 1 + found[0].completion.tokens.index(end))
    (source / "tokenizer.json").write_text("{}")
    with pytest.raises(SourceError, match=r"tokenizer.json: not a tokenizer"):
        weightmill.load_model(source).generate(ids)

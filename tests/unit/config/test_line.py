"""What is typed, sorted, and how short verbs are spelt."""

import shlex
from pathlib import Path

import pytest

from pipeline.__main__ import _main
from pipeline.config import line
from pipeline.config.overrides import as_typed
from pipeline.config.synonyms import spelt
from pipeline.errors import ConfigError

MODELS = ("gpt_oss", "llama")


def test_words_stand_in_any_order() -> None:
    typed = ["-m", "plan", "+model=gpt_oss", "--config-dir", "mine", "quant=int4,int8", "~sampling"]
    found = line.read(typed)
    assert (found.verb, found.options) == ("plan", ["-m", "--config-dir", "mine"])
    assert found.overrides == ["+model=gpt_oss", "quant=int4,int8", "~sampling"]
    assert found.sweeps
    assert found.spelt is None
    assert line.read(["+model=gpt_oss", "plan"]).verb == "plan"


SPELT = {
    "convert DIR --to gguf --quant q4_0": "model.source=DIR flow=convert export=gguf quant=q4_0",
    "convert gpt_oss --quant=mxfp4 --out out": "model=gpt_oss flow=convert quant=mxfp4 export.path=out",
    "evaluate DIR --quant int4,int8 --texts a.txt b.txt": (
        "-m model.source=DIR flow=evaluate quant=int4,int8 'evaluate.texts=[a.txt,b.txt]'"
    ),
    "evaluate DIR --texts a.txt evaluate.windows.tokens=9": (
        "model.source=DIR flow=evaluate 'evaluate.texts=[a.txt]' evaluate.windows.tokens=9"
    ),
    "generate hf://a/b@main PROMPT --max-tokens 9": (
        "model.source=hf://a/b@main flow=generate sampling.max_tokens=9 prompt=PROMPT"
    ),
    "chat DIR --temperature 0.2": "chat model.source=DIR sampling.temperature=0.2",
    "chat +model=gpt_oss quant=mxfp4": "chat +model=gpt_oss quant=mxfp4",
    "convert DIR --rule *down_proj*=int8 --rule attention=keep seed=1": (
        """model.source=DIR flow=convert 'model.extra_rules=[{match: "*down_proj*", to: int8}, """
        "{role: attention, to: keep}]' seed=1"
    ),
    "plan convert DIR": "plan model.source=DIR flow=convert",
    "convert a,b --quant int4": """'model.source='"'"'a,b'"'"'' flow=convert quant=int4""",
}


@pytest.mark.parametrize("typed", SPELT)
def test_a_short_verb_spells_overrides(typed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is printed is what is typed without the verb."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["/usr/bin/weightmill"])
    found = line.read(typed.split(), MODELS)
    assert found.spelt == f"weightmill {SPELT[typed]}"
    again = line.read(shlex.split(found.spelt)[1:], MODELS)
    assert (again.verb, again.options, again.overrides) == (found.verb, found.options, found.overrides)


def test_a_prompt_may_hold_anything() -> None:
    found = line.read(["generate", "DIR", "What is 1+1=? Or [2], ~3", "--system", "a=b, c"], MODELS)
    assert found.overrides[-1] == "prompt=What is 1+1=? Or [2], ~3"
    assert "system=a=b, c" in found.overrides


def test_a_folder_called_like_an_option_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama").mkdir()
    assert line.read(["convert", "llama"], MODELS).overrides[0] == "model.source=llama"


@pytest.mark.parametrize("verb", line.SHORT)
def test_usage_fits_eighty_columns(verb: str) -> None:
    told = line.usage(verb).splitlines()
    assert told[0].startswith(f"weightmill {verb} SOURCE")
    assert max(map(len, told)) <= 80
    assert all(any(option in text for text in told) for option in line.SHORT[verb].takes)


def test_home_is_what_it_is_in_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    typed = ["model.source=~/m", "evaluate.texts=[~/a.txt, b~/c, ~/d]", "prompt=~/x", "~/y=1", "paths.run=a~/b"]
    assert as_typed(typed) == [
        "model.source=/home/me/m", "evaluate.texts=[/home/me/a.txt, b~/c, /home/me/d]", "prompt='~/x'", "~/y=1",
        "paths.run=a~/b",
    ]  # fmt: skip


def test_dtypes_have_several_spellings() -> None:
    for given in ("fp16", "f16", "float16", "Float16"):
        assert spelt(given, ("bf16", "fp16")) == "fp16"
    assert spelt("float32", ("auto", "f32")) == "f32"
    assert spelt("bfloat16", ("bf16",)) == "bf16"
    assert spelt("fp64", ("fp32",)) == "fp64"
    assert spelt("fp16", ("bf16", "fp32")) == "fp16"
    assert spelt(True, ("bf16",)) is True


def test_two_verbs_are_one_too_many() -> None:
    with pytest.raises(ConfigError, match="convert evaluate: one verb at a time"):
        line.read(["convert", "evaluate", "DIR"], MODELS)


# By what is typed: the overrides that it is.
TAKEN = {
    ("convert", "--rule", "*x*=int8", "DIR"): [
        "model.source=DIR", "flow=convert", 'model.extra_rules=[{match: "*x*", to: int8}]',
    ],
    ("convert", "DIR", "--out", "~/x"): ["model.source=DIR", "flow=convert", "export.path=~/x"],
    ("convert", "DIR", "--out", "a=b"): ["model.source=DIR", "flow=convert", "export.path='a=b'"],
    ("evaluate", "--texts", "c=d.txt", "~/e.txt", "seed=1", "DIR"): [
        "model.source=DIR", "flow=evaluate", "evaluate.texts=['c=d.txt',~/e.txt]", "seed=1",
    ],
    ("evaluate", "--texts", "t.txt", "--", "-dir"): ["model.source=-dir", "flow=evaluate", "evaluate.texts=[t.txt]"],
    ("generate", "DIR", "~hello"): ["model.source=DIR", "flow=generate", "prompt=~hello"],
    ("generate", "model=llama", "~hello"): ["flow=generate", "prompt=~hello", "model=llama"],
    ("generate", "DIR", "Hi", "~sampling"): ["model.source=DIR", "flow=generate", "prompt=Hi", "~sampling"],
    ("generate", "DIR", "~a.b", "--prompt-file", "p"): [
        "model.source=DIR", "flow=generate", "prompt_file=p", "~a.b",
    ],
    ("generate", "DIR", "~a.b", "--", "Hi"): ["model.source=DIR", "flow=generate", "prompt=Hi", "~a.b"],
    ("generate", "DIR", "- item"): ["model.source=DIR", "flow=generate", "prompt=- item"],
    ("generate", "DIR", "--no way, x=1"): ["model.source=DIR", "flow=generate", "prompt=--no way, x=1"],
    ("generate", "DIR", "--", "--quant"): ["model.source=DIR", "flow=generate", "prompt=--quant"],
    ("generate", "--", "DIR", "seed=1"): ["model.source=DIR", "flow=generate", "prompt=seed=1"],
    ("generate", "DIR", "plan"): ["model.source=DIR", "flow=generate", "prompt=plan"],
    ("generate", "DIR", "tune"): ["model.source=DIR", "flow=generate", "prompt=tune"],
}  # fmt: skip


@pytest.mark.parametrize("typed", TAKEN, ids=" ".join)
def test_words_are_taken_as_they_are(typed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c=d.txt").touch()
    found = line.read(typed, MODELS)
    assert (found.options, found.overrides) == ([], TAKEN[typed])


def test_a_source_may_have_an_equals_sign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hydra's sweeps name folders so."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quant=int4").mkdir()
    assert line.read(["convert", f"{tmp_path}/quant=int4"], MODELS).overrides[0].endswith("/quant=int4'")
    assert line.read(["convert", "quant=int4"], MODELS).overrides == ["model.source='quant=int4'", "flow=convert"]
    for given in ("DIR", "model=llama"):
        assert line.read(["convert", given, "quant=int4"], MODELS).overrides[-1] == "quant=int4"


WRONG = {
    "evaluate --texts t.txt mine": (
        "evaluate: of which checkpoint? SOURCE comes before --texts: weightmill evaluate mine --texts t.txt"
    ),
    "evaluate --texts t.txt u.txt --quant int4": (
        "evaluate: of which checkpoint? SOURCE comes before --texts: "
        "weightmill evaluate SOURCE --texts t.txt u.txt --quant int4"
    ),
    "convert --rule a=int8": "convert: of which checkpoint? weightmill convert DIR, FILE.gguf or hf://owner/name",
    "convert mine --rule a=int8 b": "convert: 'b' is one word too many",
    "convert mine --out --quant int4": "convert --out: a value is expected, --out OUT",
    "convert mine --out -m": "convert --out: a value is expected, --out OUT",
    "generate mine -xyz": "-xyz: there is no such option (weightmill --help says what there is)",
    "plan --texts a.txt": "--texts: is an option of evaluate; without such a verb write evaluate.texts=…",
    "plan explain quant": "plan explain: one verb at a time, or plan, graph or why before another",
}


@pytest.mark.parametrize("typed", WRONG)
def test_what_is_wrong_is_said(typed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["/usr/bin/weightmill"])
    (tmp_path / "mine").mkdir()
    with pytest.raises(ConfigError) as why:
        line.read(typed.split(), MODELS)
    assert str(why.value) == WRONG[typed]


APART = {
    "explain quant": ("explain", ["quant"]),
    "--config-dir DIR explain quant": ("explain", ["--config-dir", "DIR", "quant"]),
    "-cd explain gc --delete": ("gc", ["-cd", "explain", "--delete"]),
    "paths.outputs=o gc": ("gc", ["paths.outputs=o"]),
    "--out tune": None,
    "generate DIR tune": None,
    "-- explain": None,
    "": None,
}


@pytest.mark.parametrize("typed", APART)
def test_verbs_that_are_no_run_stand_anywhere(typed: str) -> None:
    assert line.apart(typed.split()) == APART[typed]


def test_home_is_no_deletion() -> None:
    with pytest.raises(ConfigError, match="'~/x': a setting is written key=value"):
        line.read(["~/x"])
    assert line.read(["~a.b", "~stages/load", "~x=1"]).overrides == ["~a.b", "~stages/load", "~x=1"]


def test_version_is_asked_anywhere(capfd: pytest.CaptureFixture[str]) -> None:
    assert _main(["plan", "--version"]) == 0
    assert capfd.readouterr().out.startswith("weightmill ")


def test_explain_has_the_users_folder_wherever_it_is_named(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WEIGHTMILL_CONFIG_DIR", "")
    (tmp_path / "quant").mkdir()
    (tmp_path / "quant" / "of_mine.yaml").write_text("defaults: [int4]\n")
    assert _main(["--config-dir", str(tmp_path), "explain", "quant"]) == 0
    assert "of_mine" in capfd.readouterr().out
    with pytest.raises(ConfigError, match="explain -m: there is no such option"):
        _main(["-m", "explain", "quant"])


def test_what_a_scaffold_says_next_goes_through_the_same_door(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["/usr/bin/weightmill"])
    for verb in ("new-stage", "new-kernel"):
        assert _main([verb, "of_mine", "--dir", verb]) == 0
        assert f"next:\n  weightmill --config-dir {verb} " in capfd.readouterr().out

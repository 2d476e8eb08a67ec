"""What is typed, sorted, and how short verbs are spelt."""

import shlex
from pathlib import Path

import pytest

from pipeline.__main__ import _main
from pipeline.config import line, usage, verbs
from pipeline.config.overrides import as_typed
from pipeline.config.synonyms import spelt
from pipeline.errors import ConfigError

MODELS = {
    "model": ("gpt_oss", "llama"), "flow": ("convert", "full", "sensitivity", "verify"),
    "quant": ("int4", "int8", "q4_0"), "export": ("gguf", "hf"),
}  # fmt: skip


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
    "plan gpt_oss quant=int4": "plan model=gpt_oss quant=int4",
    "why hf://a/b --quant int4": "why model.source=hf://a/b quant=int4",
    "sensitivity DIR --quant int4 --by role": "model.source=DIR flow=sensitivity quant=int4 sensitivity.by=role",
    "transcode DIR --to gguf --out out": "model.source=DIR flow=transcode export=gguf export.path=out",
    "plan verify DIR hf://a/b": "plan a=DIR b=hf://a/b flow=verify",
    "verify a=DIR b=OTHER": "flow=verify a=DIR b=OTHER",
    "evaluate DIR --texts a.txt,b.txt c.txt": "model.source=DIR flow=evaluate 'evaluate.texts=[a.txt,b.txt,c.txt]'",
    "convert DIR --dtype fp16 --quant none": "model.source=DIR flow=convert export.dtype=fp16 quant=none",
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


PLAIN = ("--quant keep", "--quant none,keep", "quant=keep", "--rule head=keep --rule attention=none", "--rule a=quant")


@pytest.mark.parametrize("typed", PLAIN)
def test_a_dtype_stands_beside_what_quantizes_nothing(typed: str) -> None:
    assert "export.dtype=fp16" in line.read(["convert", "DIR", *typed.split(), "--dtype", "fp16"], MODELS).overrides


@pytest.mark.parametrize("prompt", ["k=v is", "seed=1 is the seed"])
def test_a_prompt_that_looks_like_a_setting_is_shown_behind_dashes(prompt: str) -> None:
    with pytest.raises(ConfigError, match="where it is the prompt") as why:
        line.read(["generate", "DIR", "seed=2", prompt], MODELS)
    pasted = shlex.split(str(why.value).splitlines()[1])
    assert pasted[-5:] == ["generate", "DIR", "seed=2", "--", prompt]
    assert line.read(pasted[pasted.index("generate") :], MODELS).overrides[2] == f"prompt={prompt}"
    with pytest.raises(ConfigError, match="Once upon a time"):
        line.read(["generate", "DIR", "seed=1", "model.rules=[{match: x, to: keep}]", "system=be brief"], MODELS)


def test_what_info_is_about_may_follow_it() -> None:
    for typed in (["--info", "config"], ["--info=config"]):
        assert line.read([*typed, "seed=1"]).options == ["--info=config"]
    assert line.read(["-i", "seed=1"]).options == ["-i=all"]


def test_two_texts_with_a_comma_and_one_file_with_a_comma(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert "evaluate.texts=[a,b]" in line.read(["evaluate", "DIR", "--texts", "a,b"], MODELS).overrides
    (tmp_path / "a,b").touch()
    assert "evaluate.texts=['a,b']" in line.read(["evaluate", "DIR", "--texts", "a,b"], MODELS).overrides


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
    ("convert", "DIR", "model=llama"): ["model.source=DIR", "flow=convert", "model=llama"],
    ("convert", "model=llama", "--quant", "int4", "DIR"): [
        "model.source=DIR", "flow=convert", "quant=int4", "model=llama",
    ],
    ("evaluate", "model=llama", "--texts", "a", "b"): ["flow=evaluate", "evaluate.texts=[a,b]", "model=llama"],
    ("generate", "d.gguf", "Hi", "model=llama"): ["model.source=d.gguf", "flow=generate", "prompt=Hi", "model=llama"],
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
    "convert mine --rule a=int8 b": "convert: 'b' is one word too many; a value of several words goes in quotes",
    "convert mine --out --quant int4": "convert --out: a value is expected, --out DIR",
    "convert mine --out -m": "convert --out: a value is expected, --out DIR",
    "generate mine -xyz": ("generate -xyz: there is no such option (weightmill generate --help says what there is)"),
    "plan --texts a.txt": "--texts: is an option of evaluate; without such a verb write evaluate.texts=…",
    "plan xyz": "plan xyz: no such file or folder, and no model or verb of that name",
    "plan mina quant=int4": (
        "plan mina: no such file or folder, and no model or verb of that name; did you mean 'mine'?"
    ),
    "generate mine": (
        "generate: what is to be continued? --prompt-file=FILE, - for standard input, or\n"
        "weightmill generate mine 'Once upon a time'"
    ),
    "generate mine --max-tokens 3": (
        "generate: what is to be continued? --prompt-file=FILE, - for standard input, or\n"
        "weightmill generate mine 'Once upon a time' --max-tokens=3"
    ),
    "generate mine k=v": (
        "generate: what is to be continued? 'k=v' sets a value; where it is the prompt:\n"
        "weightmill generate mine -- k=v"
    ),
    "generate mine The state of --max-tokens 3": (
        "generate: 'state' is one word too many; a prompt of several words goes in quotes:\n"
        "weightmill generate mine 'The state of' --max-tokens=3"
    ),
    "generate mine prompt=hello world": (
        "prompt=hello world: is one word, and goes in quotes:\nweightmill generate mine 'prompt=hello world'"
    ),
    "generate mine Hi prompt=x": "generate: 'Hi' is one word too many; a value of several words goes in quotes",
    "evaluate mine evaluate.texts=[a, b]": (
        "evaluate.texts=[a, b]: is one word, and goes in quotes:\nweightmill evaluate mine 'evaluate.texts=[a, b]'"
    ),
    "model.source=mine plan model.rules=[{match: x, to: keep}] seed=1": (
        "model.rules=[{match: x, to: keep}]: is one word, and goes in quotes:\n"
        "weightmill model.source=mine plan 'model.rules=[{match: x, to: keep}]' seed=1"
    ),
    "plan model.source=my model.gguf seed = 1": (
        "model.source=my model.gguf: is one word, and goes in quotes:\n"
        "weightmill plan 'model.source=my model.gguf' seed = 1\n"
        "seed = 1: there are no spaces around '=': seed=1"
    ),
    "convert my model.gguf": ("my model.gguf: is one word, and goes in quotes:\nweightmill convert 'my model.gguf'"),
    "chat mine --system be brief --quant int4": (
        "be brief: is one word, and goes in quotes:\nweightmill chat mine --system 'be brief' --quant int4"
    ),
    "plan model.source=mine export.path=my out dir seed=1": (
        "'out': a setting is written key=value, and a value of several words in quotes:\n'export.path=my out dir'"
    ),
    "quantize mine --quant int4": "'quantize': is no verb here; write\nweightmill convert mine --quant=int4",
    "plan quantize mine": "'quantize': is no verb here; write\nweightmill plan convert mine",
    "full mine --quant int4 seed=1": (
        "'full': is a flow, and no verb; write\nweightmill model.source=mine flow=full quant=int4 seed=1"
    ),
    "convert mine --quant q4_0 --dtype fp16": (
        "convert --quant q4_0 --dtype fp16: --dtype writes plain values and nothing packed, as large as fp16 is, with "
        "the error of q4_0. Leave out --dtype, and what is quantized is written packed; leave out --quant, and "
        "nothing is quantized; or write export.dtype=fp16 in the place of --dtype, if you want just that"
    ),
    "convert mine --rule a=int8 --rule b=keep --dtype fp16": (
        "convert --rule a=int8 --dtype fp16: --dtype writes plain values and nothing packed, as large as fp16 is, with "
        "the error of a=int8. Leave out --dtype, and what is quantized is written packed; leave out --rule, and "
        "nothing is quantized; or write export.dtype=fp16 in the place of --dtype, if you want just that"
    ),
    "convert mine quant=keep,int4 --dtype fp16": (
        "convert quant=keep,int4 --dtype fp16: --dtype writes plain values and nothing packed, as large as fp16 is, "
        "with the error of keep,int4. Leave out --dtype, and what is quantized is written packed; leave out quant, and "
        "nothing is quantized; or write export.dtype=fp16 in the place of --dtype, if you want just that"
    ),
    "convert mine --multrun": (
        "convert --multrun: there is no such option (weightmill convert --help says what there is)"
    ),
    "convert mine --texts a": (
        "convert --texts: there is no such option; evaluate has it (weightmill convert --help says what there is)"
    ),
    "bench mine --quant int4": "bench --quant: it measures several; 'quants=[NAME,NAME…]'",
    "convert mine --temprature 1": (
        "convert --temprature: there is no such option (weightmill convert --help says what there is)"
    ),
    "convert mine int4": "convert: 'int4' is one word too many; write\nweightmill convert mine --quant int4",
    "convert mine --quant int4 int8": (
        "convert: 'int8' is one word too many; write\nweightmill convert mine --quant int4,int8"
    ),
    "convert mine gguf int4": (
        "convert: 'gguf' is one word too many; write\nweightmill convert mine --quant int4 --to gguf"
    ),
    "quantize mine int4": "'quantize': is no verb here; write\nweightmill convert mine --quant int4",
    "convert mine --quant int4 --quant int8": (
        "convert --quant int4 --quant int8: two values for one setting; leave one of them out, or both in turn: "
        "--quant int4,int8"
    ),
    "convert mine --quant int4 quant=int8": (
        "convert --quant int4 quant=int8: two values for one setting; leave one of them out"
    ),
    "convert mine seed=1 seed=2": "convert seed=1 seed=2: two values for one setting; leave one of them out",
    "evaluate mine --texts a --texts b": (
        "evaluate --texts a --texts b: two values for one setting; leave one of them out, or --texts FILE FILE"
    ),
    "verify mine": "verify: of which checkpoints? weightmill verify DIR DIR",
    "gpt_oss": "'gpt_oss': a setting is written key=value; did you mean model=gpt_oss?",
    "owner/Model-1B.v2": (
        "'owner/Model-1B.v2': nothing of that path is here; a model of the hub goes after a verb: "
        "weightmill chat hf://owner/Model-1B.v2"
    ),
    "plan explain quant": "plan explain: one verb at a time, or plan, graph or why before another",
}


@pytest.mark.parametrize("typed", WRONG)
def test_what_is_wrong_is_said(typed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["/usr/bin/weightmill"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "my model.gguf").touch()
    with pytest.raises(ConfigError) as why:
        line.read(typed.split(), MODELS)
    assert str(why.value) == WRONG[typed]


# By what other programs' options are typed: the line that is typed here.
FOREIGN = {
    "convert mine --bits 4": "convert mine --quant int4",
    "convert mine --bits=4 --group-size 64": "convert mine --quant int4 quant.block_elems=64",
    "convert mine --outfile x --outtype q4_0": "convert mine --out x --quant q4_0",
    "convert mine --outtype f16 -o=x seed=2": "convert mine --dtype fp16 --out x seed=2",
    "convert --model mine --quant int4": "convert mine --quant int4",
    "generate --model mine -p hi -n 20": "generate mine hi --max-tokens 20",
    "generate mine --prompt hi --top-p 0.9 --temp 0.5": "generate mine hi sampling.top_p=0.9 --temperature 0.5",
    "generate mine -p hi --max-tokens 3": "generate mine hi --max-tokens 3",
    "generate mine x --seed 1 --device cuda": "generate mine x seed=1 engine.device=gpu",
    "evaluate mine --ctx-size 512": "evaluate mine evaluate.windows.window=512",
    "plan mine --bits 8 --overwrite": "plan mine --quant int8 overwrite=true",
    "model.source=mine --top-k 3": "model.source=mine sampling.top_k=3",
    "convert mine --format gguf": "convert mine --to gguf",
    "convert mine --bits 4 --nope": None,
}


@pytest.mark.parametrize("typed", FOREIGN)
def test_options_of_other_programs_are_said_as_here(
    typed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["/usr/bin/weightmill"])
    (tmp_path / "mine").mkdir()
    with pytest.raises(ConfigError, match="there is no such option") as why:
        line.read(typed.split(), MODELS)
    *_, last = str(why.value).splitlines()
    if FOREIGN[typed] is None:
        assert "--help says what there is" in str(why.value)
        assert not last.startswith("weightmill"), "half of the line would be lost"
    else:
        assert last == f"weightmill {FOREIGN[typed]}"
        line.read(shlex.split(last)[1:], MODELS)


def test_hydras_own_options_stay() -> None:
    assert line.read(["convert", "DIR", "-c", "job", "-p", "quant"], MODELS).options == ["-c", "job", "-p", "quant"]


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


@pytest.mark.parametrize("name", verbs.BENCHMARKS)
def test_a_word_behind_bench_names_a_benchmark(name: str) -> None:
    sources = ["DIR"] if verbs.BENCHMARKS[name].sources else []
    said = line.read(["plan", "bench", name, *sources, "--against", "last", "bench.rounds=1"], MODELS)
    given = [f"model.source={source}" for source in sources]
    assert said.overrides == [*given, f"flow=bench_{name}", "bench.against=last", "bench.rounds=1"]
    assert said.verb == "plan"
    assert line.read(["bench", "+model=llama", name, *sources][: 3 + len(sources)], MODELS).overrides[-1] != name
    told = usage.usage(f"bench {name}")
    assert told.startswith(f"weightmill bench {name}")
    assert max(map(len, told.splitlines())) <= 80
    assert f"bench {name}" in usage.usage("bench")
    assert usage.asked(["bench", name, "--help"]) == f"bench {name}"


def test_a_benchmark_typed_wrong_is_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean `bench convert`"):
        line.read(["bench", "convrt", "DIR"], MODELS)
    assert line.read(["bench", "llama"], MODELS).overrides == ["model=llama", "flow=bench"]
    with pytest.raises(ConfigError, match="one word too many"):
        line.read(["bench", "ops", "DIR"], MODELS)
    with pytest.raises(ConfigError, match="bench convert: of which checkpoint"):
        line.read(["bench", "convert"], MODELS)
    assert usage.asked(["convert", "--help"]) == "convert"
    assert usage.asked(["bench", "DIR", "--help"]) == "bench"
    assert usage.asked(["--help"]) is None

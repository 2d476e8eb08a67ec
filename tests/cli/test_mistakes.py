"""Fifty mistakes that people make in their first hour, and what they are told: what is wrong, and what to type.

Each message is seen at 80 columns, ends with the exit code of its kind, and has no traceback.
"""

import json
import os
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from tests.cases import toy_gpt_oss, toy_llama
from tests.cli import warm

G, L, C = "+model=gpt_oss", "model.source=llama", "flow=convert"
MISTAKES: list[tuple[str, int, str]] = [
    # Which model.
    ("", 2, "no model chosen; model.source=DIR, FILE.gguf or hf://owner/name says which by itself"),
    ("llama", 2, "'llama': a checkpoint is given as model.source=llama, or after a verb: weightmill convert llama"),
    ("gpt_oss", 2, "'gpt_oss': a setting is written key=value"),
    ("source=llama", 2, "there is no 'source' in the config; did you mean model.source?"),
    ("model.sourc=llama", 2, "model.sourc=llama: did you mean model.source=llama?"),
    ("model.source=HuggingFaceTB/SmolLM2-135M", 4, "the hub's is model.source=hf://HuggingFaceTB/SmolLM2-135M"),
    ("model.source=https://huggingface.co/a/b/tree/main", 4, "that is a page; its model is model.source=hf://a/b"),
    ("model.source=arun", 4, "it is the folder of a run, whose export is arun/model"),
    ("model.source=.", 4, "there are checkpoints in it: gpt, llama"),
    ("model.source=lama", 4, "did you mean 'llama'?"),
    ("model.source=~/nowhere", 4, "no such file or folder"),
    ("model.source=text.txt", 4, "is no checkpoint that can be read (what can: a folder or file of .safetensors;"),
    (f"+model=gemma {L}", 2, "model=gemma: there is no 'gemma' in model; here that is gemma3"),
    ("model=gpt-oss", 2, "did you mean 'gpt_oss'"),
    (f"model=gpt_oss {L} {C}", 4, "says 'llama'; model=llama is for it"),
    (f"{G} model=llama", 2, "model is chosen twice; leave one of them out"),
    # Which scheme.
    (f"{G} quant=4bit", 2, "there is no '4bit' in quant; here that is int4, nf4 or mxfp4"),
    (f"{G} quant=Q4_K_M", 2, "did you mean 'q4_k_m'?"),
    (f"{G} quant=mxfp", 2, "did you mean 'mxfp4'"),
    (f"{G} quant=INT4x", 2, "did you mean 'int4'"),
    (f"{G} +quant=int4", 2, "+quant=int4: quant has a value; without + it is replaced: quant=int4"),
    (f"{G} ++quant=int4", 2, "++quant=int4: quant has a value; without + it is replaced: quant=int4"),
    (f"{G} quant=int4,int8", 2, "these are several runs, and -m runs each of them; or choose one, such as quant=int4"),
    (f"{G} quant = int4", 2, "quant = int4: there are no spaces around '=': quant=int4"),
    (f"{G} quant= int4", 2, "quant= int4: there are no spaces around '=': quant=int4"),
    (f"{G} quant", 2, "'quant': a setting is written key=value"),
    (f"{G} --quant=int4", 2, "is an option of convert, evaluate, generate, chat, sensitivity, transcode; without"),
    (f"{G} --qant=int4", 2, "--qant=int4: there is no such option; did you mean --quant"),
    ("-v", 2, "-v: there is no such option (weightmill --help says what there is)"),
    (f"{G} debug=true quant=int9", 2, "there is no 'int9' in quant; did you mean 'int8'"),
    (f"{L} quant=int4 {C} quant.block_elems=33", 3, "15 of 21 tensors that quant= is for"),
    # What comes out.
    (f"{G} export=safetensors", 2, "there is no 'safetensors' in export; here that is hf, or plain for bf16"),
    (f"{G} export=vllm", 2, "here that is compressed_tensors"),
    (f"{G} export=ggf", 2, "did you mean 'gguf'?"),
    (f"{G} {C} export.dtype=fp8", 2, "export.dtype: 'fp8' is not a choice"),
    (f"{G} {C} dtype=fp16", 2, "there is no 'dtype' in the config; did you mean export.dtype or engine.dtype"),
    # How far.
    (f"{G} flow=chat", 2, "here that is the verb chat: weightmill chat DIR"),
    (f"{G} flow=eval", 2, "here that is evaluate"),
    (f"{G} flow=convert,evaluate", 2, "or choose one, such as flow=convert"),
    (f"plna {G}", 2, "did you mean 'plan'"),
    (f"plan why {G}", 2, "plan why: one verb at a time"),
    (f"{G} stages=load,decode", 2, "a list is written 'stages=[load, decode]'"),
    # Texts and lists.
    (f"{G} evaluate.texts=a.txt,b.txt", 2, "a list is written 'evaluate.texts=[a.txt, b.txt]'"),
    (f"{G} flow=evaluate evaluate.texts=text.txt", 2, "a list is expected, got 'text.txt'; [text.txt] is one"),
    (f"{G} prompts=One,two", 2, "one text with commas in it 'prompts=\"One,two\"'"),
    (f"{G} flow=generate prompts=[Hello there!]", 2, "prompts=[\"Hello there!\"]"),
    (f"{G} flow=generate prompts_file=nothing.txt", 2, "prompts_file=nothing.txt: cannot be read: No such file"),
    (f"{G} prompt=a prompt_file=b", 2, "one of them says what is continued"),
    (f"{G} {{model.rules={{match: x}}}}", 2, "a list is expected, 'model.rules=[{match: x}]'"),
    (f"{G} {{model.rules=[to: keep]}}", 2, "a mapping is expected, of {to: …, match: …, role: …}, got 'to: keep'"),
    (f"{G} max_tokens=9", 2, "did you mean sampling.max_tokens?"),
    (f"{G} generate.max_tokens=9", 2, "there is no 'generate' in the config; did you mean sampling.max_tokens?"),
    (f"{G} engine.max_tokens=9", 2, "there is no 'max_tokens' in engine; did you mean sampling.max_tokens?"),
    (f"{G} samplng.max_tokens=9", 2, "there is no 'samplng' in the config; did you mean 'sampling'?"),
    (f"{G} flow=generate sampling.temperature=hot", 2, "sampling.temperature: a number is expected, got 'hot'"),
    (f"{G} {{export.path=a b!}}", 2, "' ' ends a value; one with it goes in quotes, here 'export.path=\"a b!\"'"),
    # Numbers beyond all bounds.
    (f"{G} flow=bench_train bench.rounds=1000000", 2, "bench.rounds=1000000: 1,000 or less is allowed"),
    (f"{G} flow=bench_train bench.rate=inf", 2, "bench.rate: a finite number is expected, got inf"),
    (f"{G} flow=bench_train bench.rounds=many", 2, "error: bench.rounds: a whole number is expected, got 'many'"),
    (f"{G} flow=bench engines=[jax] quants=-1", 2, "quants: a list of quant options is expected, such as"),
    (f"{G} {C} quant=q4_k quant.rules=-1", 2, "quant.rules: a list is expected, got -1"),
    (f"{G} {C} quant=int4 quant.zero_point=it", 2, "quant.zero_point: 'it' is not a choice; did you mean 'int'"),
    (f"{G} {C} quant=int4 quant.search_grid=[0]", 2, "quant.search_grid: [0.0]: factors above 0 and below 100 are"),
    (f"{G} {C} seed=100000000000000000000", 2, "seed: 1.000e+20 is too large; whole numbers have 64 bits"),
    # Short verbs.
    ("convert", 2, "convert: of which checkpoint? weightmill convert DIR, FILE.gguf or hf://owner/name"),
    ("convert llama int4", 2, "one word too many; write python -m pipeline convert llama --quant int4"),
    ("convert llama --quant", 2, "convert --quant: a value is expected, --quant NAME"),
    ("convert llama --format gguf", 2, "--format gguf: there is no such option; here that is --to gguf"),
    ("convert llama --texts a.txt", 2, "convert --texts: there is no such option"),
    ("generate gpt The state of", 2, "'state' is one word too many; a prompt of several words goes in quotes"),
    ("chat llama flow=generate", 2, "chat flow=generate: a chat has no stages"),
    ("chat llama -m", 2, "chat -m: one conversation at a time"),
    ("chat llama", 4, "tokenizer"),
    ("gc --delet", 2, "did you mean '--delete'?"),
    ("convert llama --quant q4_0 --dtype fp16", 2, "--dtype writes plain values and nothing packed"),
    ("convert llama --to gguf --out x.gguf", 3, "export.path=x writes x/model.gguf"),
    ("convert llama --quant int4 --rule atention=keep", 3, "rule atention=keep: the model has no such role; did you"),
    ("convert llama --quant int4 --rule *=int9", 2, "rule *=int9: 'int9' is neither quant, keep nor a quant option"),
    (
        "plan convert llama --quant int4 --rule model.layers.0.*=int8", 3,
        "'model.extra_rules=[{role: norm, to: keep}, {match: \"model.layers.0.*\", to: int8}]' keeps them",
    ),
    ("quantize llama --quant int4", 2, "'quantize': is no verb here; write python -m pipeline convert llama --quant="),
    ("generate gpt", 2, "what is to be continued?"),
    ("plan lama", 2, "plan lama: no such file or folder, and no model or verb of that name; did you mean 'llama'"),
    # What is not Hydra's business.
    (f"{G} {{quant=[int4,q4_0]}}", 2, "one quant is chosen, and these are 2: quant=int4, or all of them in turn"),
    (f"-m {G} {C} {{quant=int8,[int4,q4_0]}}", 2, "with -m quant=int4,q4_0"),
    (f"{L} flow=sensitivity sensitivity=role", 2, "no setting; did you mean sensitivity.by=role?"),
    (f"{G} seed=${{nope}}", 2, "seed: refers to 'nope', and there is no such key"),
    (f"{G} seed=${{oc.env:NOPE_XY}}", 2, "seed: refers to the environment variable 'NOPE_XY', which is not set"),
    (f"{G} ~quant", 2, "refers to 'quant', and there is no such key"),
    (f"{G} ~nokey", 2, "~nokey: there is no 'nokey' in the config"),
    (f"{G} +seed=1", 2, "+seed=1: seed has a value; without + it is replaced: seed=1"),
    (f"{G} seed@x=1", 2, "@ is for groups, and there is no group 'seed'"),
    (f"{G} evaluate.texts.sub=1", 2, "evaluate.texts is a list, and has no 'sub'; it is set as a whole"),
    (f"{G} {{evaluate.texts=[a}}", 2, "a list whose texts go in quotes, each in its own"),
    (f"plan {L} quant=int4 {C} quant.block_elems=33", 3, "15 of 21 tensors that quant= is for"),
    # Where it lies.
    ("plan ./x.gguf", 4, "model.source='./x.gguf': no such file or folder in HERE"),
    ("plan smollm2", 2, "smollm2 is a family; its checkpoints by name are smollm2_135m, smollm2_1_7b, smollm2_360m"),
    ("chat SmolLM2", 4, "did you mean model=smollm2_135m or"),
    ("model.source=llama/modl.safetensors", 4, "in HERE/llama; did you mean 'model.safetensors'?"),
    (f"{L} {C} paths.run=/proc/x", 5, "/proc/x: this folder cannot be made"),
    # explain.
    ("explain q3_k_s", 2, "here that is q3_k"),
    ("explain --nope", 2, "explain --nope: there is no such option"),
]  # fmt: skip


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first hour")
    toy_gpt_oss.write(folder / "gpt", toy_gpt_oss.make("hf", "bf16"))
    for name in ("llama", "arun/model"):
        (folder / name).mkdir(parents=True)
        save_file(toy_llama.weights(), folder / name / "model.safetensors")
        (folder / name / "config.json").write_text(json.dumps(toy_llama.CONFIG))
    (folder / "arun" / "manifest.json").write_text("{}")
    (folder / "text.txt").write_text("The state of the Union. " * 9)
    return folder


def words(typed: str) -> list[str]:
    """As a shell gives them; braces around one with spaces stand for its quotes."""
    found, rest = [], typed
    while rest := rest.lstrip():
        if rest.startswith("{"):
            word, rest = rest[1:].rsplit("}", 1)
        elif "[" in rest.partition(" ")[0]:
            word, rest = rest[: rest.index("]") + 1], rest[rest.index("]") + 1 :]
        else:
            word, _, rest = rest.partition(" ")
        found.append(word)
    return found


@pytest.mark.parametrize(("typed", "code", "said"), MISTAKES, ids=[typed or "nothing" for typed, _, _ in MISTAKES])
def test_what_a_mistake_is_told(typed: str, code: int, said: str, here: Path) -> None:
    before = sorted(here.rglob("*"))
    got, out, err = warm.run(words(typed), here, {**os.environ, "COLUMNS": "80"}, 60)
    said = said.replace("HERE", str(here))
    if "debug=true" in typed:
        assert err.startswith("Traceback"), "which debug=true keeps"
        assert (got, out) == (code, "")
        assert said in err
        return
    lines = [line for line in err.splitlines() if not line.startswith(("python -m ", "loading"))]
    assert (got, out) == (code, ""), err
    assert lines[0].startswith("error: "), err
    assert said in " ".join(err.split()), err
    assert "Traceback" not in err
    assert "Exception" not in err
    assert len(err) < 1200, "more than anybody reads"
    assert sorted(here.rglob("*")) == before, "a mistake leaves nothing behind"


def test_the_version_is_ours(here: Path) -> None:
    for asked in ("--version", "version"):
        code, out, err = warm.run([asked], here, {**os.environ}, 60)
        assert (code, err) == (0, "")
        assert out.startswith("weightmill ")
        assert "Hydra" not in out


@pytest.mark.parametrize(
    "typed", ["plan model.source=./x.gguf", "plan model.source=~/x.gguf", "plan model.source=foo/x.safetensors"]
)
def test_a_file_that_is_not_there_is_no_repository(typed: str, here: Path) -> None:
    code, _, err = warm.run(words(typed), here, {**os.environ, "COLUMNS": "80"}, 60)
    assert code == 4
    assert "no such file or folder" in " ".join(err.split())
    assert "hf://" not in err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("explain int4", "quant=int4: 4-bit integers"),
        ("explain sensitivity", "sensitivity.windows"),
        ("explain --rule", "--rule of a short verb says model.extra_rules=…"),
        ("explain plan", "weightmill plan [VERB] SOURCE"),
        ("explain flow=convert", "flow=convert: From one checkpoint to another."),
        ("explain auto", "tokenizer=auto"),
        ("plan --help", "weightmill plan [VERB] SOURCE"),
        ("verify --help", "weightmill verify A B [KEY=VALUE …]"),
        ("--help", "Choices (group=name)"),
        (f"plan llama {C}", "peak memory"),
        (f"why gpt_oss {C}", "no earlier run has one"),
    ],
)
def test_what_is_no_mistake(typed: str, said: str, here: Path) -> None:
    code, out, err = warm.run(words(typed), here, {**os.environ, "COLUMNS": "80"}, 60)
    assert code == 0, err
    assert said in out
    assert max(map(len, out.splitlines())) <= 80 or typed == f"plan llama {C}", "but for the path of a file"


def test_there_are_fifty() -> None:
    assert len({typed for typed, _, _ in MISTAKES}) >= 50

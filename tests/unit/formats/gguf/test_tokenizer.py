"""Tokenizers through GGUF and back, judged by the `tokenizers` package: the same text gives the same tokens."""

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import PlanError
from plugins.formats.gguf import sampling
from plugins.formats.gguf.bytelevel import SAME, SPLITTERS
from plugins.formats.gguf.tokenizer import from_kv, tokenizer_kv, unsaid

TINY = Path(__file__).parents[4] / "plugins/models/gpt_oss/tiny"
TEXTS = (
    "The capital of France is Paris.",
    "Hello   world\n\n 12345 + 67 = don't I'LL",
    "naïve café — 日本語 🦙🦙 x\t\ty",
    "<|startoftext|>user\nHi<|return|>",
    "a1b 22 ３三 x²  \n \n\n\tend ",
)
CONFIG = {"vocab_size": 4096, "max_position_embeddings": 2048, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 3}


@pytest.fixture(scope="module")
def tiny():
    return json.loads((TINY / "tokenizer.json").read_bytes())


def config_with(tokenizer, about=None, **more):
    about = about if about is not None else json.loads((TINY / "tokenizer_config.json").read_bytes())
    return {**CONFIG, "tokenizer.json": tokenizer, "tokenizer_config.json": about, **more}


def kv_of(config, pre=None):
    kv, problems = tokenizer_kv(config, pre)
    assert not problems, problems
    return kv


def tokens(tokenizer, text):
    import tokenizers

    raw = tokenizer if isinstance(tokenizer, bytes) else json.dumps(tokenizer).encode()
    return tokenizers.Tokenizer.from_buffer(raw).encode(text).ids


def test_what_a_file_says(tiny):
    kv = kv_of(config_with(tiny))
    assert kv["tokenizer.ggml.model"] == ("string", "gpt2")
    assert kv["tokenizer.ggml.pre"] == ("string", "gpt-2")
    kind, listed = kv["tokenizer.ggml.tokens"]
    assert (kind, len(listed)) == ("array:string", 4096)
    assert all(listed[i] == t for t, i in tiny["model"]["vocab"].items())
    kinds = kv["tokenizer.ggml.token_type"][1]
    special = {t["id"] for t in tiny["added_tokens"]}
    assert {i for i, k in enumerate(kinds) if k == 3} == special
    assert kv["tokenizer.ggml.merges"][1][:2] == ["Ġ t", "h e"]
    ids = {k.removeprefix("tokenizer.ggml."): v[1] for k, v in kv.items() if k.endswith("_id")}
    assert ids == {"bos_token_id": 0, "eos_token_id": 1, "padding_token_id": 3}
    assert kv["tokenizer.ggml.add_bos_token"] == ("bool", False)


@pytest.mark.parametrize("pre", SPLITTERS)
def test_there_and_back(tiny, pre):
    """For every splitter: the file names it, and what is read from the file splits the same."""
    given = {**tiny, "pre_tokenizer": SPLITTERS[pre]}
    if pre == "qwen2":
        given["normalizer"] = {"type": "NFC"}
    kv = kv_of(config_with(given))
    assert kv["tokenizer.ggml.pre"][1] == pre
    files = from_kv(kv, CONFIG)
    for text in TEXTS:
        assert tokens(files["tokenizer.json"], text) == tokens(given, text)
    about = json.loads(files["tokenizer_config.json"])
    assert (about["bos_token"], about["eos_token"], about["pad_token"]) == (
        "<|startoftext|>",
        "<|endoftext|>",
        "<|pad|>",
    )
    assert about["model_max_length"] == 2048
    ends = {"bos_token_id": 0, "eos_token_id": [1, 2], "pad_token_id": 3}  # llama.cpp knows <|return|> by its spelling
    assert json.loads(files["generation_config.json"]) == ends
    again = {n: json.loads(b) for n, b in files.items()}
    assert kv_of({**CONFIG, **again}) == kv


def test_other_names_of_splitters(tiny):
    """llama.cpp has several names for most; where a file has none it splits as it did before there were names."""
    kv = kv_of(config_with(tiny))
    del kv["tokenizer.ggml.add_bos_token"]
    split = {}
    for pre in (*SPLITTERS, *SAME):
        split[pre] = json.loads(from_kv({**kv, "tokenizer.ggml.pre": ("string", pre)}, CONFIG)["tokenizer.json"])
    assert all(split[other] == split[name] for other, name in SAME.items())
    assert split["pixtral"]["post_processor"]["type"] == "TemplateProcessing"  # BOS is added
    assert split["deepseek-r1-qwen"] == {**split["qwen2"], "normalizer": None}
    none = {k: v for k, v in kv.items() if k != "tokenizer.ggml.pre"}
    file = from_kv(none, CONFIG)["tokenizer.json"]
    assert json.loads(file) == split["default"]
    # llama-cpp-python 0.3.36 on such a file
    spelled = {i: t for t, i in tiny["model"]["vocab"].items()}
    found = " ".join(spelled[i] for i in tokens(file, "$100,000 <a href='x'>=~~ 1234567 don't"))
    assert found == "$ 1 00 , 000 Ġ < a Ġh re f = ' x ' > = ~ ~ Ġ 12 3 4 5 6 7 Ġdon ' t"


def test_an_unknown_splitter_is_refused_or_named(tiny):
    given = {**tiny, "pre_tokenizer": {"type": "Whitespace"}}
    _, problems = tokenizer_kv(config_with(given), None)
    assert "none of those known (gpt-2, smollm" in str(problems[0])
    assert kv_of(config_with(given), "special")["tokenizer.ggml.pre"] == ("string", "special")


def test_an_unknown_model_is_refused(tiny):
    _, problems = tokenizer_kv(config_with({**tiny, "model": {"type": "Unigram"}}), None)
    assert "model 'Unigram'; BPE is what can be written" in str(problems[0])
    _, problems = tokenizer_kv(config_with({**tiny, "model": {**tiny["model"], "byte_fallback": True}}), None)
    assert "are not SentencePiece's" in str(problems[0])


def test_rows_without_a_token(tiny):
    """Embeddings may have more rows than there are tokens, not fewer."""
    kv = kv_of(config_with(tiny, vocab_size=4100))
    assert kv["tokenizer.ggml.tokens"][1][4096:] == [f"[PAD{i}]" for i in range(4096, 4100)]
    assert kv["tokenizer.ggml.token_type"][1][4096:] == [5] * 4
    vocab = json.loads(from_kv(kv, CONFIG)["tokenizer.json"])["model"]["vocab"]
    assert vocab == tiny["model"]["vocab"]
    _, problems = tokenizer_kv(config_with(tiny, vocab_size=4000), None)
    assert "has token 4095, config.json's vocab_size is 4000" in str(problems[0])


def test_other_spellings(tiny):
    """Merges as strings, special tokens as objects, a template in a file of its own, a token that is not special.

    A flag of tokenizer_config.json adds no BOS where there is a tokenizer.json: as in transformers, and in llama.cpp.
    """
    model = {**tiny["model"], "merges": [" ".join(m) for m in tiny["model"]["merges"]]}
    extra = {**tiny["added_tokens"][0], "id": 4096, "content": "<tool>", "special": False}
    given = {**tiny, "model": model, "added_tokens": [*tiny["added_tokens"], extra]}
    about = {"bos_token": {"content": "<|return|>"}, "add_bos_token": True}
    config = config_with(given, about, vocab_size=4097, **{"chat_template.jinja": "{{ messages }}"})
    kv = kv_of(config)
    assert kv["tokenizer.ggml.merges"][1] == model["merges"]
    assert kv["tokenizer.ggml.bos_token_id"] == ("uint32", 2)
    assert kv["tokenizer.ggml.token_type"][1][4096] == 4
    assert kv["tokenizer.chat_template"] == ("string", "{{ messages }}")
    files = from_kv(kv, CONFIG)
    assert kv["tokenizer.ggml.add_bos_token"] == ("bool", False)
    assert tokens(files["tokenizer.json"], "a <tool>b") == tokens(given, "a <tool>b")
    assert json.loads(files["tokenizer_config.json"])["chat_template"] == "{{ messages }}"


def test_a_bos_that_the_tokenizer_adds(tiny):
    first = [{"SpecialToken": {"id": "<|startoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    post = {"type": "Sequence", "processors": [{"type": "TemplateProcessing", "single": first}]}
    for about in ({"bos_token": "<|startoftext|>"}, {"bos_token": "<|startoftext|>", "add_bos_token": False}):
        kv = kv_of(config_with({**tiny, "post_processor": post}, about))
        assert kv["tokenizer.ggml.add_bos_token"] == ("bool", True)
        assert tokens(from_kv(kv, CONFIG)["tokenizer.json"], "a b")[0] == 0


def spelled(tiny, *texts, **more):
    """A config with further special tokens, from id 4096."""
    first = tiny["added_tokens"][0]
    added = [{**first, "id": 4096 + i, "content": t} for i, t in enumerate(texts)]
    given = {**tiny, "added_tokens": [*tiny["added_tokens"], *added]}
    return config_with(given, {"eos_token": "<|endoftext|>"}, vocab_size=4096 + len(texts), **more)


@pytest.mark.parametrize(
    ("texts", "ends", "places", "read"),
    [
        (["<|eot_id|>", "<|eom_id|>"], [1, 4097, 4096], {"eot": 4096, "eom": 4097}, [1, 4096, 4097, 2]),  # Llama 3
        (["<end_of_turn>"], [1, 4096], {"eot": 4096}, [1, 4096, 2]),  # Gemma 3
        (["<fin>"], [4096, 1], {"eot": 4096}, [1, 4096, 2]),
        (["<|im_end|>", "<fin>", "<stop>"], [1, 4097, 4098], {"eot": 4097, "eom": 4098}, [1, 4097, 4098, 2, 4096]),
        (["<|im_end|>"], 1, {}, [1, 2, 4096]),
    ],
)
def test_all_that_ends_a_text(tiny, texts, ends, places, read):
    """What llama.cpp does not know by its spelling is said in the places that there are."""
    config = spelled(tiny, *texts, **{"generation_config.json": {"eos_token_id": ends}})
    kv = kv_of(config)
    assert {n: kv.get(f"tokenizer.ggml.{n}_token_id", (0, None))[1] for n in ("eos", "eot", "eom")} == {
        "eos": 1, "eot": places.get("eot"), "eom": places.get("eom")
    }  # fmt: skip
    files = from_kv(kv, config)
    assert json.loads(files["generation_config.json"])["eos_token_id"] == read
    again = kv_of({**config, **{n: json.loads(b) for n, b in files.items()}})
    assert again.items() >= kv.items()
    assert not unsaid(config, kv)


def test_ends_that_a_file_has_no_place_for(tiny):
    config = spelled(tiny, "<a>", "<b>", "<c>", **{"generation_config.json": {"eos_token_id": [4096, 4097, 4098]}})
    assert unsaid(config, kv_of(config)).startswith("llama.cpp will not end at <c>: GGUF has no more places")


def test_what_ends_a_text_by_a_file(tiny):
    """As llama.cpp has it, but for pages of HTML: Gemma's </s> is no control token."""
    kv = kv_of(spelled(tiny, "</s>", "<x>", "<|file_sep|>", "<y>"))
    said = {"eot_token_id": ("uint32", 4097), "fim_pad_token_id": ("uint32", 4099), "eom_token_id": ("uint32", 9999)}
    kv |= {f"tokenizer.ggml.{key}": value for key, value in said.items()}

    def read():
        return json.loads(from_kv(kv, CONFIG)["generation_config.json"])["eos_token_id"]

    assert read() == [1, 4097, 4099, 4098, 2, 4096]
    kv["tokenizer.ggml.token_type"][1][4096] = 4
    assert read() == [1, 4097, 4099, 4098, 2]


def test_several_chat_templates(tiny):
    named = [{"name": "default", "template": "{{ a }}"}, {"name": "tool_use", "template": "{{ b }}"}]
    kv = kv_of(config_with(tiny, {"chat_template": named}))
    assert kv["tokenizer.chat_template"] == ("string", "{{ a }}")
    assert kv["tokenizer.chat_template.tool_use"] == ("string", "{{ b }}")
    assert kv["tokenizer.chat_templates"] == ("array:string", ["tool_use"])
    found = json.loads(from_kv(kv, CONFIG)["tokenizer_config.json"])["chat_template"]
    assert sorted(found, key=lambda t: t["name"]) == named
    kv["tokenizer.chat_template.tool_use"] = ("uint32", 1)
    with pytest.raises(PlanError, match="is uint32; string is expected"):
        from_kv(kv, CONFIG)


def test_how_tokens_are_to_be_drawn(tiny):
    """What the makers of a model recommend, which programs of llama.cpp go by."""
    generation = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05}
    kv = sampling.to_kv(generation)
    assert kv["general.sampling.temp"] == ("float32", 0.6)
    assert kv["general.sampling.top_k"] == ("int32", 20)
    stored = {k: (t, float(np.float32(v)) if t == "float32" else v) for k, (t, v) in kv.items()}
    made = json.loads(from_kv({**kv_of(config_with(tiny)), **stored}, CONFIG)["generation_config.json"])
    assert made.items() >= generation.items()
    assert sampling.to_kv({**generation, "do_sample": False}) == {"general.sampling.penalty_repeat": ("float32", 1.05)}
    assert sampling.to_kv({"do_sample": True, "top_k": "many", "temperature": None}) == {}


def test_other_tokenizers_are_left_out():
    """What cannot be made is not made up: no tokenizer files."""
    for kv in (
        {},
        {"tokenizer.ggml.model": ("string", "none")},
        {"tokenizer.ggml.model": ("string", "llama"), "tokenizer.ggml.tokens": ("array:string", ["a"])},
        {"tokenizer.ggml.model": ("string", "gpt2"), "tokenizer.ggml.pre": ("string", "falcon")},
    ):
        assert from_kv(kv, CONFIG) == {}
    assert kv_of(CONFIG) == {"tokenizer.ggml.model": ("string", "none")}

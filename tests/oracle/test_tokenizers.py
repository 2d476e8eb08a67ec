"""Text and ids by transformers: the same as ours for the same files, and for files that we make of GGUF metadata."""

import json

import pytest

from pipeline.errors import ConfigError, SourceError
from plugins.formats.gguf.tokenizer import from_kv
from plugins.tokenizers.load import load_tokenizer
from tests.cases import chats, toy_spm
from tests.cases import tokenizers as cases
from tests.unit.formats.gguf import test_sentencepiece as spm_cases
from tests.unit.formats.gguf.test_tokenizer import CONFIG, TEXTS, TINY, config_with, kv_of
from tests.unit.tokenizers.test_chat_templates import loaded

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("variables", chats.VARIABLES)
@pytest.mark.parametrize("name", chats.TEMPLATES)
def test_chat_templates(name, variables, tmp_path):
    """The same text and the same ids for every conversation, or an error from both."""
    from transformers import PreTrainedTokenizerFast

    about = {"chat_template": chats.TEMPLATES[name], "bos_token": "<|a|>", "eos_token": "<t>"}
    about |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    ours = loaded(about)
    (tmp_path / "tokenizer.json").write_bytes(cases.tokenizer_json("byte_level"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    rendered = 0
    for label, messages in chats.CHATS.items():
        given = {"add_generation_prompt": True} | chats.VARIABLES[variables]
        try:
            expected = theirs.apply_chat_template(messages, tokenize=False, **given)
        except Exception:  # jinja2 raises what it likes
            with pytest.raises((SourceError, ConfigError)):
                ours.chat(messages, **given)
            continue
        rendered += 1
        ids = ours.chat(messages, **given)
        assert ours.decode(ids, skip_special=False) == expected, label
        assert ids == theirs.apply_chat_template(messages, return_dict=False, **given), label
    assert rendered >= 6


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["tiny", "byte_level", "byte_fallback", "metaspace"])
def test_tokenizer_json(kind, tmp_path):
    from transformers import PreTrainedTokenizerFast

    json_file = (cases.TINY / "tokenizer.json").read_bytes() if kind == "tiny" else cases.tokenizer_json(kind)
    begins = "<|return|>" if kind == "tiny" else "<|a|>"
    about = {"bos_token": begins, "add_bos_token": True, "tokenizer_class": "PreTrainedTokenizerFast"}
    about |= {} if kind == "tiny" else {"pad_token": "<t>"}
    files = {"tokenizer.json": json_file, "tokenizer_config.json": json.dumps(about).encode()}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    ours, theirs = load_tokenizer(files, {}), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert ours.bos == theirs.bos_token_id
    assert ours.special >= set(theirs.all_special_ids)  # theirs are those that have a name
    for text in (*cases.TEXTS, f"{begins}fox<t>  fox{begins} <x y>"):
        for special in (True, False):
            ids = ours.encode(text, special=special)
            assert ids == theirs.encode(text, add_special_tokens=special)
            for skip in (True, False):
                assert ours.decode(ids, skip_special=skip) == theirs.decode(ids, skip_special_tokens=skip)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("where", ["tokenizer.json", "tokenizer_config.json", "both, not alike"])
@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_added_tokens(kind, where, tmp_path):
    """How one is found in text, by every way to say it; where the two files differ, tokenizer_config.json has it."""
    from transformers import PreTrainedTokenizerFast

    flags = ("special", "single_word", "lstrip", "rstrip", "normalized")
    both = json.loads(cases.tokenizer_json(kind))
    first = max(t["id"] for t in both["added_tokens"]) + 1
    tokens = [
        {"content": f"f{i}o", **{flag: bool(i >> n & 1) for n, flag in enumerate(flags)}}
        for i in range(2 ** len(flags))
    ]
    said = [t | {"lstrip": not t["lstrip"], "special": not t["special"]} for t in tokens] if "not" in where else tokens
    about = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if where != "tokenizer_config.json":
        both["added_tokens"] += [{"id": first + i, **t} for i, t in enumerate(tokens)]
    if where != "tokenizer.json":
        about["added_tokens_decoder"] = {str(first + i): t for i, t in enumerate(said)}
    files = {"tokenizer.json": json.dumps(both).encode(), "tokenizer_config.json": json.dumps(about).encode()}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    ours, theirs = load_tokenizer(files, {}), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for token in (t["content"] for t in tokens):
        text = f"a {token}  b a{token}b {token}. {token}{token}"
        ids = ours.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False), token
        for skip in (True, False):
            stream = ours.stream(skip_special=skip)
            streamed = "".join(map(stream.push, ids)) + stream.end()
            assert streamed == ours.decode(ids, skip_special=skip) == theirs.decode(ids, skip_special_tokens=skip), (
                token
            )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("legacy", [True, False])
def test_sentencepiece(legacy, tmp_path):
    """transformers makes a tokenizer.json of tokenizer.model; around special tokens it does what we do.

    But for spaces there: `Metaspace` takes one after a special token for the "▁" it would put; the model does not.
    """
    from transformers import LlamaTokenizer

    about = {"legacy": legacy, "add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    about |= {"tokenizer_class": "LlamaTokenizer"}
    files = {"tokenizer.model": cases.sentencepiece_model("bpe"), "tokenizer_config.json": json.dumps(about).encode()}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    ours, theirs = load_tokenizer(files, {}), LlamaTokenizer.from_pretrained(tmp_path)
    for text in ("The quick fox", "<s>fox", "fox</s>fox  lazy", "<s>The lazy 🦙\n\n dogs</s>fox", "</s></s>fox"):
        for special in (True, False):
            assert ours.encode(text, special=special) == theirs.encode(text, add_special_tokens=special), text


def test_vocabularies_out_of_gguf(tmp_path):
    from transformers import AutoTokenizer

    for name, content in from_kv(
        kv_of(config_with(json.loads((TINY / "tokenizer.json").read_bytes()))), CONFIG
    ).items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "config.json").write_text((TINY / "config.json").read_text())
    ours, theirs = AutoTokenizer.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(TINY)
    for text in TEXTS:
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]
        assert ours.decode(ours(text)["input_ids"]) == theirs.decode(theirs(text)["input_ids"])
    assert (ours.eos_token_id, ours.pad_token_id) == (theirs.eos_token_id, theirs.pad_token_id)


@pytest.mark.parametrize("prefix", [True, False], ids=["llama", "gemma"])
def test_sentencepiece_out_of_gguf(prefix, tmp_path):
    """As published Llama 2 and Gemma tokenizers do: encode and decode, the special tokens known."""
    from transformers import AutoTokenizer

    for name, content in from_kv(toy_spm.kv(prefix), spm_cases.CONFIG).items():
        (tmp_path / name).write_bytes(content)
    model_type = "llama" if prefix else "gemma3_text"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    ours = spm_cases.tokenizer_of((tmp_path / "tokenizer.json").read_bytes())
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in toy_spm.TEXTS:
        assert theirs(text)["input_ids"] == ours.encode(text).ids
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.unk_token_id) == (1, 2, 0)

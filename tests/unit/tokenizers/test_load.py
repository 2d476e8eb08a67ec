"""From the files of a checkpoint to its tokenizer: which files count, what they say, and the errors."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.digest import InputFile, digest
from pipeline.errors import ConfigError, SourceError
from pipeline.stage import Checkpoint
from plugins.tokenizers.auto import Auto
from plugins.tokenizers.load import load_tokenizer
from tests.cases import tokenizers as cases
from tests.cases.memory_store import MemoryStore


def as_json(**content):
    return json.dumps(content).encode()


def bpe(**files):
    return {"tokenizer.json": cases.tokenizer_json("byte_level")} | {
        f"{name}.json": as_json(**content) for name, content in files.items()
    }


A = 340  # id of <|a|> in the byte-level tokenizer of the cases


def test_the_tiny_gpt_oss():
    tokenizer = cases.tokenizer("tiny")
    assert (tokenizer.vocab_size, tokenizer.bos, tokenizer.eos, tokenizer.special) == (4096, 0, (1,), {0, 1, 2, 3})
    ids = tokenizer.encode("Call me Ishmael.<|return|>")
    assert ids == [38, 478, 487, 2380, 3910, 68, 791, 17, 2]
    assert tokenizer.decode(ids) == "Call me Ishmael."
    assert tokenizer.decode(ids, skip_special=False) == "Call me Ishmael.<|return|>"
    assert tokenizer.encode("Call me Ishmael.<|return|>", special=True) == ids  # it puts nothing around a text
    plain = tokenizer.encode("<|return|>", plain=True)
    assert 2 not in plain
    assert tokenizer.decode(plain) == "<|return|>"
    assert tokenizer.id_of("<|return|>") == 2
    assert tokenizer.id_of("<|call|>") is None
    assert not tokenizer.has_chat_template


def test_ids_that_no_token_has():
    for kind in cases.KINDS:
        tokenizer = cases.tokenizer(kind)
        ids = tokenizer.encode("ox")
        assert tokenizer.decode([*ids, tokenizer.vocab_size, tokenizer.vocab_size + 77]) == "ox", kind


def test_what_ends_a_generation():
    """generation_config.json first, then config.json, then the tokenizer's own; each id once."""
    files = bpe(generation_config={"eos_token_id": [7, 5]}, tokenizer_config={"eos_token": {"content": "<|a|>"}})
    assert load_tokenizer(files, {"eos_token_id": 5}).eos == (7, 5, A)
    assert load_tokenizer(files, {"eos_token_id": [9, 7]}).eos == (7, 5, 9, A)
    assert load_tokenizer(files, {"text_config": {"eos_token_id": 11}}).eos == (7, 5, 11, A)
    assert load_tokenizer(bpe(), {"eos_token_id": 0}).eos == (0,)
    assert load_tokenizer(bpe(), {}).eos == ()
    with pytest.raises(SourceError, match="x: eos_token_id should be ids, has 'end'"):
        load_tokenizer(bpe(), {"eos_token_id": ["end"]}, "x")


@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id"])
def test_ids_that_cannot_be_are_refused_by_the_plan_too(key: str):
    """By the file that says so; as ids of the model's vocabulary, which config.json says."""
    for given, said in (
        (67, "has 67, and the model knows 67 tokens (config.json vocab_size): ids from 0 to 66"),
        ("</s>", "should be ids, has '</s>'"),
        ([2, "x"], "should be ids, has 'x'"),
        (-1, "should be ids, has -1"),
    ):
        files, config = bpe(generation_config={key: given}), {"vocab_size": 67}
        for look in (Auto().check, Auto().load):
            with pytest.raises(SourceError, match=re.escape(f"generation_config.json: {key} {said}")):
                look(Checkpoint(MemoryStore({}), config, files=files))
    Auto().check(Checkpoint(MemoryStore({}), {"vocab_size": 67}, files=bpe(generation_config={key: 66})))


def test_what_begins_a_text():
    said = {"bos_token_id": 4}
    assert load_tokenizer(bpe(tokenizer_config={"bos_token": "<|a|>"}), said).bos == A
    assert load_tokenizer(bpe(tokenizer_config={"bos_token": None}), said).bos is None  # Qwen
    assert load_tokenizer(bpe(tokenizer_config={}), said).bos == 4
    assert load_tokenizer(bpe(generation_config={"bos_token_id": 6}), said).bos == 6
    assert load_tokenizer(bpe(special_tokens_map={"bos_token": "<|a|>"}), said).bos == A
    assert load_tokenizer(bpe(), {}).bos is None
    with pytest.raises(
        SourceError, match=r"tokenizer_config.json: bos_token is '<s>', which the vocabulary does not have"
    ):
        load_tokenizer(bpe(tokenizer_config={"bos_token": "<s>"}), {})


def test_what_is_put_around_a_text():
    """tokenizer.json says it; add_bos_token beside it counts for nothing, as in transformers 5."""
    given = json.loads(cases.tokenizer_json("byte_level"))
    single = [{"SpecialToken": {"id": "<|a|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    tokens = {"<|a|>": {"id": "<|a|>", "ids": [A], "tokens": ["<|a|>"]}}
    given["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": tokens}
    given["post_processor"]["pair"] = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    plain = cases.tokenizer("byte_level").encode("fox")
    for adds in (False, True):
        files = bpe(tokenizer_config={"bos_token": "<|a|>", "add_bos_token": adds})
        assert load_tokenizer(files, {}).encode("fox", special=True) == plain
        tokenizer = load_tokenizer(files | {"tokenizer.json": json.dumps(given).encode()}, {})
        assert tokenizer.encode("fox", special=True) == [A, *plain]
        assert tokenizer.encode("fox") == plain


def test_tokens_beside_the_vocabulary():
    """tokenizer_config.json may know tokens that tokenizer.json does not; their ids have to be what it would give."""
    token = {"content": "<new>", "special": True, "rstrip": True}
    added = load_tokenizer(bpe(tokenizer_config={"added_tokens_decoder": {"343": token}}), {})
    assert added.encode("fox<new> \n fox") == [*added.encode("fox"), 343, *added.encode("fox")]
    assert (added.vocab_size, 343 in added.special, added.decode([343])) == (344, True, "")
    with pytest.raises(SourceError, match=r"token '<new>' should have id 350, tokenizer.json makes it 343"):
        load_tokenizer(bpe(tokenizer_config={"added_tokens_decoder": {"350": token}}), {})
    word = load_tokenizer(bpe(tokenizer_config={"pad_token": "<t>", "extra_special_tokens": ["fox"]}), {})
    assert {word.id_of("<t>"), A} <= word.special


def test_older_files():
    model = {"tokenizer.model": cases.sentencepiece_model("bpe"), "added_tokens.json": as_json(**{"<new>": 400})}
    tokenizer = load_tokenizer(model | {"special_tokens_map.json": as_json(pad_token={"content": "<new>"})}, {})
    assert tokenizer.encode("<new>") == [400]
    assert 400 in tokenizer.special
    with pytest.raises(SourceError, match=r"added_tokens.json: '<new>' should have an id, has 'x'"):
        load_tokenizer(model | {"added_tokens.json": as_json(**{"<new>": "x"})}, {})


def test_which_file_counts():
    both = bpe() | {"tokenizer.model": cases.sentencepiece_model("bpe"), "tiny.tiktoken": cases.byte_ranks()}
    sizes = {
        kind: load_tokenizer(both, {}, kind=kind, encoding="o200k_harmony").vocab_size
        for kind in ("auto", "tokenizers", "tiktoken", "sentencepiece")
    }
    assert sizes == {"auto": 343, "tokenizers": 343, "tiktoken": 265 + 1090, "sentencepiece": 400}
    ranks = load_tokenizer({"tokenizer.model": cases.byte_ranks()}, {}, encoding="qwen")  # as Llama 3's is
    assert ranks.vocab_size == 265 + 208
    with pytest.raises(ConfigError, match=r"tokenizer.kind='tokenizer': no such kind; did you mean 'tokenizers'"):
        load_tokenizer(both, {}, kind="tokenizer")


def test_no_tokenizer():
    with pytest.raises(SourceError) as error:
        load_tokenizer({"LICENSE": b"", "vocab.json": b"{}", "merges.txt": b""}, {}, "there")
    for part in ("there: has no tokenizer", "looked for: tokenizer.json, *.tiktoken", "tekken.json", "spiece.model"):
        assert part in str(error.value)
    assert "found: LICENSE, merges.txt, vocab.json" in str(error.value)
    assert "vocab.json and merges.txt do not say how text is split" in str(error.value)
    with pytest.raises(SourceError, match=r"looked for: tokenizer.json; found: tokenizer.model\)"):
        load_tokenizer({"tokenizer.model": b"x"}, {}, kind="tokenizers")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"{", "tokenizer.json: not a tokenizer: "),
        ("tokenizer.model", b"\x00\x01\x02", "tokenizer.model: not a sentencepiece model"),
        ("tokenizer.model", b"QQ== 0\nQg== one\n", "tokenizer.model, line 2: base64 and a rank are expected"),
        ("x.tiktoken", b"QQ== 0\nQg=\n", "x.tiktoken, line 2: base64 and a rank are expected"),
        ("x.tiktoken", b"QQ== 0\n", "has 1 ranks, as no known encoding does .*tokenizer.encoding=NAME"),
        ("tekken.json", b"{}", "tekken.json: not a tekken vocabulary: .*default_num_special_tokens is missing"),
        ("tekken.json", b"[]", "tekken.json: expected a JSON object, got list"),
    ],
)
def test_malformed(name, content, message):
    with pytest.raises(SourceError, match=message):
        load_tokenizer({name: content}, {})


def test_malformed_companions(tmp_path):
    for content, message in (
        ({"bos_token": 3}, "bos_token: a token should be a string or an object with `content`, found 3"),
        ({"added_tokens_decoder": {"x": {"content": "a"}}}, "added_tokens_decoder should map ids to objects"),
        ({"added_tokens_decoder": {"3": "a"}}, "added_tokens_decoder should map ids to objects"),
    ):
        with pytest.raises(SourceError, match=message):
            load_tokenizer(bpe(tokenizer_config=content), {})
    with pytest.raises(SourceError, match=r"here: tokenizer_config.json: not JSON at character 1"):
        load_tokenizer(bpe() | {"tokenizer_config.json": b"{"}, {}, "here")
    with pytest.raises(SourceError, match="not UTF-8 at byte 1: invalid start byte"):
        load_tokenizer(bpe() | {"tokenizer_config.json": b"{\xff"}, {})
    gone = tmp_path / "tokenizer_config.json"
    with pytest.raises(SourceError, match=f"{gone}: cannot be opened: No such file"):
        load_tokenizer(bpe() | {"tokenizer_config.json": gone}, {})


def test_the_node(tmp_path):
    checkpoint = Checkpoint(
        MemoryStore({}),
        {"eos_token_id": 3},
        bpe(),
        (InputFile(tmp_path / "model.safetensors", 0, 0),),
        origin="SafeTensors · plain.Plain",
    )
    assert Auto().load(checkpoint).eos == (3,)
    with pytest.raises(SourceError) as error:
        Auto(kind="sentencepiece").load(checkpoint)
    assert f"{tmp_path} (SafeTensors · plain.Plain): has no tokenizer" in str(error.value)


def test_what_the_node_reads_beside_the_checkpoint(tmp_path, monkeypatch):
    for variable in ("TIKTOKEN_ENCODINGS_BASE", "TIKTOKEN_CACHE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    template, ranks = tmp_path / "own.jinja", tmp_path / "o200k_base.tiktoken"
    for path in (template, ranks):
        path.write_text(path.name)
    own, none = Checkpoint(MemoryStore({}), files=bpe()), Checkpoint(MemoryStore({}))

    def read(node, checkpoint):
        return {f.path: f.xxh3_128 for f in node.inputs(checkpoint)}

    assert read(Auto(), own) == read(Auto(chat_template="rag"), own) == read(Auto(), none) == {}
    assert read(Auto(chat_template=str(template)), own) == {template: digest(b"own.jinja")}
    assert read(Auto(vocabulary=str(tmp_path)), none) == {ranks: digest(b"o200k_base.tiktoken")}
    assert read(Auto(vocabulary=str(tmp_path)), own) == {}  # which has one of its own
    assert read(Auto(kind="sentencepiece", vocabulary=str(tmp_path)), none) == {}
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert read(Auto(), none) == {ranks: digest(b"o200k_base.tiktoken")}


def test_harmony_vocabulary(tmp_path, monkeypatch):
    """gpt-oss's original release has no tokenizer: the folder of its vocabulary has to be named, and is checked."""
    for variable in ("TIKTOKEN_ENCODINGS_BASE", "TIKTOKEN_CACHE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    gpt_oss = {"model_type": "gpt_oss"}
    with pytest.raises(SourceError) as error:
        load_tokenizer({}, gpt_oss, "there")
    for part in ("there: has no tokenizer", "tokenizer.vocabulary", "TIKTOKEN_CACHE_DIR", "o200k_base.tiktoken"):
        assert part in str(error.value)
    with pytest.raises(
        SourceError, match=f"tokenizer.vocabulary={tmp_path}: holds neither o200k_base.tiktoken nor fb374d"
    ):
        load_tokenizer({}, gpt_oss, vocabulary=str(tmp_path))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(SourceError, match=f"TIKTOKEN_CACHE_DIR={tmp_path}: holds neither"):
        load_tokenizer({}, gpt_oss)
    (tmp_path / "o200k_base.tiktoken").write_bytes(cases.byte_ranks())
    found = hashlib.sha256(cases.byte_ranks()).hexdigest()
    with pytest.raises(SourceError, match=f"not the vocabulary of o200k_harmony: SHA-256 is {found}"):
        load_tokenizer({}, gpt_oss)
    with pytest.raises(SourceError, match=r"has no tokenizer \(looked for: [^)]*\)$"):
        load_tokenizer({}, {"model_type": "llama"})


def test_planning_needs_none_of_the_packages():
    """Modules are light: tokenizers, tiktoken, sentencepiece and jinja2 are imported when a tokenizer is loaded."""
    heavy = ("tokenizers", "tiktoken", "sentencepiece", "jinja2", "jax", "torch", "transformers")
    code = "import sys, plugins.tokenizers.auto, plugins.tokenizers.harmony_parse; "
    code += f"print([m for m in {heavy} if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"

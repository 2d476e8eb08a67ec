"""Ids by each library: what our code adds around it, as special tokens, and encodings that no file describes."""

import base64
import json

import pytest

from pipeline.errors import ConfigError, SourceError
from plugins.tokenizers.encodings import ENCODINGS
from plugins.tokenizers.load import load_tokenizer
from tests.cases import tokenizers as cases


def as_json(**content):
    return json.dumps(content).encode()


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "metaspace", "wordpiece"])
def test_tokenizer_json_as_the_package_has_it(kind):
    from tokenizers import Tokenizer

    package, ours = Tokenizer.from_buffer(cases.tokenizer_json(kind)), cases.tokenizer(kind)
    assert ours.vocab_size == package.get_vocab_size()
    for text in (*cases.TEXTS, "<|a|>fox<t>  <|a|>"):
        ids = package.encode(text).ids
        assert ours.encode(text) == ids
        for skip in (True, False):
            assert ours.decode(ids, skip_special=skip) == package.decode(ids, skip_special_tokens=skip)


def test_truncation_and_padding_are_not_ours():
    given = json.loads(cases.tokenizer_json("byte_level"))
    given["truncation"] = {"max_length": 2, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    given["padding"] = {"strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    given["padding"] |= {"pad_type_id": 0, "pad_token": "!"}
    text = cases.SENTENCES[0]
    ours = load_tokenizer({"tokenizer.json": json.dumps(given).encode()}, {})
    assert ours.encode(text) == cases.tokenizer("byte_level").encode(text)


def test_a_decoder_that_cannot_be_streamed():
    given = json.loads(cases.tokenizer_json("byte_level"))
    given["decoder"] = {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}
    tokenizer = load_tokenizer({"tokenizer.json": json.dumps(given).encode()}, {})
    with pytest.raises(SourceError, match=r"tokenizer.json: text cannot be streamed through the decoder .*CTC"):
        tokenizer.stream()


def test_sentencepiece_around_special_tokens():
    """The "▁" of a word after a special token: by default one, as in the original Llama; none with `legacy` off."""
    model = cases.sentencepiece_model("bpe")
    by_default = load_tokenizer({"tokenizer.model": model}, {})
    modern = load_tokenizer({"tokenizer.model": model, "tokenizer_config.json": as_json(legacy=False)}, {})
    fox = by_default.encode("fox")
    bare = [by_default.id_of(piece) for piece in ("f", "ox")]
    assert by_default.encode("<s>fox</s>fox") == [1, *fox, 2, *fox]
    assert modern.encode("fox</s>fox") == [*fox, 2, *bare]
    assert modern.encode("<s>fox") == [1, *bare]
    assert modern.encode("fox") == fox
    for tokenizer in (by_default, modern):
        assert tokenizer.decode(tokenizer.encode("fox</s> fox")) in ("fox fox", "fox  fox")
        assert tokenizer.encode("<s>", plain=True)[0] != 1
        assert tokenizer.encode("fox", special=True) == [1, *fox]
        assert (tokenizer.bos, tokenizer.eos, tokenizer.special) == (1, (2,), {0, 1, 2})
    ends = {"add_bos_token": False, "add_eos_token": True}
    tokenizer = load_tokenizer({"tokenizer.model": model, "tokenizer_config.json": as_json(**ends)}, {})
    assert tokenizer.encode("fox", special=True) == [*fox, 2]


def test_sentencepiece_and_added_tokens():
    model = cases.sentencepiece_model("bpe")
    decoder = {"1": {"content": "<s>", "special": True}, "400": {"content": "<end>", "special": True, "rstrip": True}}
    decoder |= {"401": {"content": "<think>", "special": False, "lstrip": True}}
    about = as_json(added_tokens_decoder=decoder, eos_token="<end>")
    tokenizer = load_tokenizer({"tokenizer.model": model, "tokenizer_config.json": about}, {})
    fox = tokenizer.encode("fox")
    assert tokenizer.encode("fox<end> \nfox \n<think>fox") == [*fox, 400, *fox, 401, *fox]
    assert tokenizer.decode([*fox, 400, 401, *fox]) == "fox<think> fox"
    assert tokenizer.decode([*fox, 400, 401, *fox], skip_special=False) == "fox<end><think> fox"
    assert (tokenizer.eos, tokenizer.vocab_size) == ((400, 2), 402)
    wrong = as_json(added_tokens_decoder={"1": {"content": "<x>"}})
    with pytest.raises(SourceError, match=r"tokenizer_config.json: token 1 should be '<x>', tokenizer.model has '<s>'"):
        load_tokenizer({"tokenizer.model": model, "tokenizer_config.json": wrong}, {})


def test_encodings():
    """Ids of special tokens as published: gpt-oss-20b, Llama-3.1-8B and Qwen-7B."""
    harmony, llama, qwen = (ENCODINGS[n].special for n in ("o200k_harmony", "llama3", "qwen"))
    assert {t: harmony[t] for t in ("<|startoftext|>", "<|return|>", "<|call|>", "<|reserved_200013|>")} == {
        "<|startoftext|>": 199998,
        "<|return|>": 200002,
        "<|call|>": 200012,
        "<|reserved_200013|>": 200013,
    }
    assert (min(harmony.values()), max(harmony.values()), len(harmony)) == (199998, 201087, 1090)
    assert {
        t: llama[t] for t in ("<|begin_of_text|>", "<|finetune_right_pad_id|>", "<|eot_id|>", "<|python_tag|>")
    } == {
        "<|begin_of_text|>": 128000,
        "<|finetune_right_pad_id|>": 128004,
        "<|eot_id|>": 128009,
        "<|python_tag|>": 128010,
    }
    assert sorted(llama.values()) == list(range(128000, 128256))
    assert (qwen["<|endoftext|>"], qwen["<|im_end|>"], qwen["<|extra_204|>"]) == (151643, 151645, 151850)


def test_ranks_and_special_tokens():
    """Special tokens follow the ranks; here there are 265 of these, and not 128000."""
    tokenizer = load_tokenizer({"tokenizer.model": cases.byte_ranks()}, {}, encoding="llama3")
    assert tokenizer.bos == 265
    assert tokenizer.eos == (266, 265 + 8, 265 + 9)
    assert tokenizer.encode(" the<|eot_id|>", special=True) == [265, 260, 274]
    assert tokenizer.encode("<|eot_id|>", plain=True) == list(b"<|eot_id|>")
    assert tokenizer.id_of(" the") == 260
    assert tokenizer.id_of("absent") is None
    assert tokenizer.decode([265, 260, 274]) == " the"
    assert tokenizer.decode([265, 260, 274], skip_special=False) == "<|begin_of_text|> the<|eot_id|>"
    about = {"added_tokens_decoder": {"266": {"content": "<end>", "special": True}, "274": {"content": "<t>"}}}
    about |= {"eos_token": "<end>", "add_bos_token": False, "add_eos_token": True}
    files = {"tokenizer.model": cases.byte_ranks(), "tokenizer_config.json": as_json(**about)}
    tokenizer = load_tokenizer(files, {}, encoding="llama3")
    assert tokenizer.encode(" the<t>", special=True) == [260, 274, 266]
    assert tokenizer.decode([260, 274, 266]) == " the<t>"
    assert tokenizer.eos == (266, 265 + 8)  # <|eot_id|> has given its place to <t>
    with pytest.raises(ConfigError, match=r"tokenizer.encoding='llama'.*did you mean 'llama3'"):
        load_tokenizer(files, {}, encoding="llama")


@pytest.mark.parametrize(("name", "digits"), [("o200k_harmony", 3), ("llama3", 3), ("qwen", 1)])
def test_how_text_is_split(name, digits):
    """Ranks that would merge everything show where an encoding cuts."""
    words = ["1", "12", "123", "1234", "the", " the", "'s", "'S", "the's", "\n", "\n\n", "  ", "!/"]
    strings = [bytes([b]) for b in range(256)] + sorted((w.encode() for w in words if len(w) > 1), key=len)
    lines = b"".join(base64.b64encode(s) + b" %d\n" % i for i, s in enumerate(dict.fromkeys(strings)))
    tokenizer = load_tokenizer({"x.tiktoken": lines}, {}, encoding=name)

    def cut(text):
        return [tokenizer.decode([i]) for i in tokenizer.encode(text)]

    assert cut("1234")[0] == "1234"[:digits]
    assert cut("the's") == (["the's"] if name == "o200k_harmony" else ["the", "'s"])
    assert cut("!/") == ["!/"]


def test_tekken():
    vocab = [{"rank": r, "token_bytes": base64.b64encode(bytes([r])).decode()} for r in range(256)]
    vocab += [{"rank": 256, "token_bytes": base64.b64encode(b"ab").decode()}]
    vocab += [{"rank": 257, "token_bytes": base64.b64encode(b"cd").decode()}]
    config = {"pattern": r"[^\n]+|\n", "default_vocab_size": 30 + 257, "default_num_special_tokens": 30}
    tokenizer = load_tokenizer({"tekken.json": as_json(config=config, vocab=vocab)}, {})
    assert tokenizer.encode("<s>[INST]abcd[/INST]") == [1, 3, 30 + 256, 30 + 99, 30 + 100, 4]  # cd did not fit
    assert tokenizer.encode("ab", special=True) == [1, 286]
    assert (tokenizer.bos, tokenizer.eos, tokenizer.vocab_size) == (1, (2,), 287)
    assert tokenizer.decode([29], skip_special=False) == "<SPECIAL_29>"
    named = [{"rank": 0, "token_str": "<unk>"}, {"rank": 1, "token_str": "<s>"}, {"rank": 2, "token_str": "</s>"}]
    named += [{"rank": 3, "token_str": "[THINK]"}]
    tokenizer = load_tokenizer({"tekken.json": as_json(config=config, vocab=vocab, special_tokens=named)}, {})
    assert tokenizer.encode("[THINK]") == [3]

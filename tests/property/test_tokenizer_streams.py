"""What comes id by id is what comes at once, for every kind of tokenizer and any ids; and never half a character."""

import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import tokenizers as cases

KIND = pytest.mark.parametrize("kind", cases.KINDS)
CHARACTERS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)
TEXT = st.one_of(CHARACTERS, st.lists(st.sampled_from([*cases.TEXTS, "<|a|>", "<t>", " fox", "<tool>"])).map("".join))


def streamed(tokenizer, ids, skip_special):
    stream = tokenizer.stream(skip_special=skip_special)
    return [*map(stream.push, ids), stream.end()]


@KIND
@settings(max_examples=150)
@given(st.data())
def test_any_ids(kind, data):
    """Ids that no text has: bytes that are no characters, special tokens anywhere, ids beyond the vocabulary."""
    tokenizer = cases.tokenizer(kind)
    size = tokenizer.vocab_size
    kinds = [st.integers(0, size + 3), st.integers(0, 269), st.integers(size - 4, size - 1)]  # bytes; added tokens
    ids = data.draw(st.lists(st.one_of(kinds), max_size=25))
    for skip in (True, False):
        assert "".join(streamed(tokenizer, ids, skip)) == tokenizer.decode(ids, skip_special=skip)


@KIND
@settings(max_examples=60)
@given(TEXT)
def test_texts(kind, text):
    tokenizer = cases.tokenizer(kind)
    ids = tokenizer.encode(text)
    parts = streamed(tokenizer, ids, False)
    assert "".join(parts) == tokenizer.decode(ids, skip_special=False)
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in parts)  # every part is whole characters


@pytest.mark.parametrize(
    "kind", ["tiny", "byte_level", "byte_fallback", "ranks", "sentencepiece_bpe", "sentencepiece_bare"]
)
@settings(max_examples=60)
@given(TEXT)
def test_there_and_back(kind, text):
    """Vocabularies that can spell everything give the text back."""
    tokenizer = cases.tokenizer(kind)
    if kind not in ("tiny", "byte_level", "ranks"):
        text = text.replace("▁", "_").replace("<t>", "")  # a space; and it puts one after an added token
    assert tokenizer.decode(tokenizer.encode(text, plain=True), skip_special=False) == text


@pytest.mark.parametrize("kind", cases.SENTENCEPIECES)
@settings(max_examples=200)
@given(st.data())
def test_sentencepiece_decodes_so(kind, data):
    """Our decoding, which has to be done id by id, is the package's."""
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor()
    model.LoadFromSerializedProto(cases.sentencepiece_model(kind.removeprefix("sentencepiece_")))
    size = model.vocab_size()
    some = [st.integers(0, size - 1), st.integers(0, min(270, size - 1)), st.integers(0, 3), st.integers(130, 250)]
    ids = data.draw(st.lists(st.one_of(some[: 4 if size > 250 else 3]), max_size=25))
    assert cases.tokenizer(kind).decode(ids) == model.decode(ids)
    text = data.draw(TEXT).replace("<s>", "").replace("<unk>", "")
    assert cases.tokenizer(kind).encode(text) == model.encode(text)


@settings(max_examples=200)
@given(st.binary(max_size=12))
def test_broken_utf8(raw):
    """As bytes.decode has it: what is wrong becomes U+FFFD, what is right around it stays."""
    tokenizer = cases.tokenizer("ranks")
    parts = streamed(tokenizer, list(raw), True)
    assert "".join(parts) == raw.decode("utf-8", errors="replace")
    valid = codecs.getincrementaldecoder("utf-8")("replace")
    assert parts[:-1] == [valid.decode(bytes([b])) for b in raw]  # nothing is held longer than it must be

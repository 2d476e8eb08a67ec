"""tokenizer.model and spiece.model, run by the `sentencepiece` package: Llama 2, Mistral, Gemma.

A sentencepiece model finds no control token (`<s>`) in text and has no tokens beyond its own; checkpoints need both. So
text is cut at those tokens here, and the pieces between go to the package. Whether a piece that follows one begins with
the "▁" of a word is what transformers calls `legacy`; its value and its default are followed.
"""

import re
from collections.abc import Sequence

from pipeline.errors import SourceError
from plugins.tokenizers.companions import Companions
from plugins.tokenizers.settings import Added, TokenizerSettings
from plugins.tokenizers.tokenizer import Stream

SPACE = "▁"  # U+2581
# `normalizer_spec { add_dummy_prefix: false }` of sentencepiece_model.proto (fields 3 and 3): serialized messages that
# are joined are merged, and the package has no setting for it.
NO_DUMMY_PREFIX = b"\x1a\x02\x18\x00"


class SentencePiece:
    """See `loaded.Backend`."""

    ends: tuple[int, ...]

    def __init__(self, files: Companions, name: str, settings: TokenizerSettings):
        """
        Raises:
            SourceError: not a sentencepiece model, or tokenizer_config.json numbers its tokens otherwise.
        """
        import sentencepiece

        where = files.where(name)
        self._model = model = sentencepiece.SentencePieceProcessor()
        raw = files.read(name)
        try:
            model.LoadFromSerializedProto(raw)
            size = model.vocab_size()
            self._pieces: list[str] = [model.id_to_piece(i) for i in range(size)]
            self._bytes = {i: int(self._pieces[i][3:5], 16) for i in range(size) if model.is_byte(i)}
        except (RuntimeError, ValueError) as why:  # the latter of pieces that are no text, or no byte
            raise SourceError(f"{where}: not a sentencepiece model: {why}") from None
        self._ids = {piece: i for i, piece in reversed(list(enumerate(self._pieces)))}
        control = {i for i in range(size) if model.is_control(i) or model.is_unknown(i)}
        self._unknown = {i: model.decode([i]) for i in range(size) if model.is_unknown(i)}  # " ⁇ " as a rule
        self._dummy = "".join(model.encode("a", out_type=str)).startswith(SPACE)
        self._single = model.encode("a  a") == model.encode("a a")  # runs of spaces are taken for one
        self._bare = sentencepiece.SentencePieceProcessor()  # puts no "▁" before a text
        self._bare.LoadFromSerializedProto(raw + NO_DUMMY_PREFIX)
        self._added = {a.id: a for a in settings.added if a.id is not None and not self._own(a, where, settings)}
        for token, added in self._added.items():
            self._ids[added.text] = token
        named = {self._ids[t] for t in (*settings.named.values(), *settings.extra) if t in self._ids}
        self.special = frozenset(control | named | {a.id for a in settings.added if a.special and a.id is not None})
        self.vocab_size = max(size - 1, *self._added, *self.special) + 1
        found = {self._text(i): Added(self._text(i), i) for i in self.special}
        found |= {a.text: a for a in settings.added}
        longest_first = sorted(found.values(), key=lambda a: -len(a.text))
        firsts = "".join(re.escape(c) for c in sorted({a.text[:1] for a in longest_first}))
        firsts += r"\s" if any(a.lstrip for a in longest_first) else ""
        # Looked at first, because there may be hundreds of alternatives to try at each character.
        self._cut = re.compile(f"(?=[{firsts}])(?:{'|'.join(map(_pattern, longest_first))})" if firsts else "(?!)")
        self._legacy = settings.about.get("legacy") is not False
        self.bos = model.bos_id() if model.bos_id() >= 0 else None
        self.ends = (model.eos_id(),) if model.eos_id() >= 0 else ()
        bos = self._ids.get(settings.named.get("bos_token", ""), self.bos)
        eos = self._ids.get(settings.named.get("eos_token", ""), next(iter(self.ends), None))
        add_bos, add_eos = (settings.about.get(f"add_{t}_token") for t in ("bos", "eos"))
        self._before = [bos] if bos is not None and add_bos is not False else []
        self._after = [eos] if eos is not None and add_eos else []

    def _own(self, added: Added, where: str, settings: TokenizerSettings) -> bool:
        """Whether an added token is one of the model's own, said again."""
        if added.id is None or added.id >= len(self._pieces):
            return False
        if self._pieces[added.id] != added.text:
            raise SourceError(
                f"{settings.where}: token {added.id} should be {added.text!r}, {where} has {self._pieces[added.id]!r}"
            )
        return True

    def encode_batch(self, texts: Sequence[str], special: bool, plain: bool) -> list[list[int]]:
        return [self._encode(text, special, plain) for text in texts]

    def _encode(self, text: str, special: bool, plain: bool) -> list[int]:
        ids: list[int] = []
        at = 0
        for match in () if plain else self._cut.finditer(text):
            ids += self._words(text[at : match.start()], at == 0)
            ids.append(self._ids[match[match.lastindex or 0]])
            at = match.end()
        ids += self._words(text[at:], at == 0)
        return [*self._before, *ids, *self._after] if special else ids

    def _words(self, text: str, first: bool) -> list[int]:
        if not text:
            return []
        if first or self._legacy:
            return list(self._model.encode(text))
        return list(self._bare.encode(text))

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        stream = self.stream(skip_special)
        return "".join([*map(stream.push, ids), stream.end()])

    def stream(self, skip_special: bool) -> Stream:
        return _Pieces(self, skip_special)

    def id_of(self, token: str) -> int | None:
        return self._ids.get(token)

    def _text(self, token: int) -> str:
        return self._added[token].text if token in self._added else self._pieces[token]


class _Pieces:
    """What `SentencePieceProcessor.decode` does, id by id.

    "▁" is a space, the first of a text is dropped when the model puts one there (all of them, when it takes runs of
    spaces for one), and a byte that is part of no character becomes U+FFFD on its own.
    """

    def __init__(self, model: SentencePiece, skip_special: bool):
        self._model, self._skip = model, skip_special
        self._bytes = b""
        self._first = model._dummy or model._single

    def push(self, token: int) -> str:
        model = self._model
        if token in model.special and (self._skip and token not in model._unknown):
            return self.end()  # no character goes on across one
        if token in model._bytes:
            self._bytes += bytes([model._bytes[token]])
            text, self._bytes = _characters(self._bytes)
            self._first = False
            return text
        if token in model._added:
            text = model._added[token].text
        elif not 0 <= token < len(model._pieces):
            return ""
        elif token in model._unknown:
            text = model._unknown[token] if self._skip else model._pieces[token]
        else:
            piece = model._pieces[token]
            text = (piece.removeprefix(SPACE) if self._first else piece).replace(SPACE, " ")
            if model._single and not text:
                return text  # so the next may drop one as well
        self._first = False
        return self.end() + text

    def end(self) -> str:
        text, self._bytes = "\ufffd" * len(self._bytes), b""
        return text


def _characters(raw: bytes) -> tuple[str, bytes]:
    """The characters that `raw` begins with, and the bytes that may be the beginning of another."""
    text = ""
    while raw:
        try:
            return text + raw.decode(), b""
        except UnicodeDecodeError as why:
            if why.reason == "unexpected end of data":
                return text + raw[: why.start].decode(), raw[why.start :]
            text += raw[: why.start].decode() + "\ufffd"
            raw = raw[why.start + 1 :]
    return text, raw


def _pattern(added: Added) -> str:
    text = rf"(?<!\w)({re.escape(added.text)})(?!\w)" if added.single_word else f"({re.escape(added.text)})"
    return (r"\s*" if added.lstrip else "") + text + (r"\s*" if added.rstrip else "")

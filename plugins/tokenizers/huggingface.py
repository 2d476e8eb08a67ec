"""tokenizer.json, run by the `tokenizers` package: what nearly every published checkpoint has."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from pipeline.errors import SourceError
from plugins.tokenizers.companions import Companions
from plugins.tokenizers.patience import has_pattern, no_panic, patiently
from plugins.tokenizers.settings import MOST_IDS, TokenizerSettings
from plugins.tokenizers.streams import ByteStream, WindowStream
from plugins.tokenizers.tokenizer import Stream

FILE = "tokenizer.json"
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# Decoders whose output for a token depends on nothing but the tokens right before it, so that it can be streamed.
LOCAL = ("Metaspace", "ByteFallback", "Fuse", "Strip", "Replace", "WordPiece", "BPEDecoder")


class HuggingFaceTokenizer:
    """See `loaded.Backend`.

    What is put around a text is tokenizer.json's to say: as in transformers 5, `add_bos_token` means nothing here.
    """

    bos: int | None = None  # tokenizer.json names no token's purpose
    ends: tuple[int, ...] = ()

    def __init__(self, files: Companions, settings: TokenizerSettings):
        """
        Raises:
            SourceError: tokenizer.json is malformed, or does not agree with tokenizer_config.json.
        """
        import tokenizers

        self._where = files.where(FILE)
        raw = files.read(FILE)
        try:
            with no_panic(self._where):
                self._tokenizer = tokenizers.Tokenizer.from_buffer(raw)
        except SourceError:
            raise
        except Exception as why:  # the package raises nothing narrower
            raise SourceError(f"{self._where}: not a tokenizer: {why}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        with no_panic(self._where):
            special = self._special()  # which the package leaves out, whatever tokenizer_config.json says then
            self._add(settings)
        self.special = special | self._special()
        self.vocab_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if self.vocab_size > MOST_IDS:
            raise SourceError(
                f"{self._where}: a token has id {self.vocab_size - 1:,}; they have to be below {MOST_IDS:,}"
            )
        self._decoders = _flat(decoder := files.json(FILE).get("decoder"), self._where)
        self._decodes_by_pattern = has_pattern(decoder)

    def _special(self) -> frozenset[int]:
        return frozenset(i for i, t in self._tokenizer.get_added_tokens_decoder().items() if t.special)

    def _add(self, settings: TokenizerSettings) -> None:
        """Tokens of tokenizer_config.json, which says last how they are found; and special ones that the vocabulary
        has otherwise."""
        from tokenizers import AddedToken

        known = {t.content: t for t in self._tokenizer.get_added_tokens_decoder().values()}
        for token in settings.added:
            given = AddedToken(
                token.text, special=token.special, normalized=bool(token.normalized), lstrip=token.lstrip,
                rstrip=token.rstrip, single_word=token.single_word,
            )  # fmt: skip
            if token.text in known and token.normalized is None:
                continue
            self._tokenizer.add_tokens([given])
            if (got := self._tokenizer.token_to_id(token.text)) != token.id:
                raise SourceError(
                    f"{settings.where}: token {token.text!r} should have id {token.id}, {self._where} makes it {got}"
                )
        already = {t.content for t in self._tokenizer.get_added_tokens_decoder().values() if t.special}
        special = [t for t in dict.fromkeys((*settings.named.values(), *settings.extra)) if t not in already]
        words = [t for t in special if self._tokenizer.token_to_id(t) is not None]
        self._tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in words])

    def encode_batch(self, texts: Sequence[str], special: bool, plain: bool) -> list[list[int]]:
        tokenizer = self._blind if plain else self._tokenizer
        # One text too goes as a batch, because the package lets nobody else run while it encodes what is none; fast:
        # where each token stood in the text is not asked for.
        return patiently(
            self._where,
            sum(map(len, texts)),
            lambda: [list(e.ids) for e in tokenizer.encode_batch_fast(list(texts), add_special_tokens=special)],
        )

    @cached_property
    def _blind(self) -> Any:
        """A second tokenizer that finds no special token in text; the setting is the tokenizer's, not the call's."""
        import tokenizers

        try:
            with no_panic(self._where):
                blind = tokenizers.Tokenizer.from_str(self._tokenizer.to_str())
        except SourceError:
            raise
        except Exception as why:  # the package reads files that it then writes in a way that it does not read
            raise SourceError(f"{self._where}: a tokenizer that cannot be copied: {why}") from None
        blind.encode_special_tokens = True
        return blind

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        if not self._decodes_by_pattern:
            with no_panic(self._where):
                return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special))
        return patiently(
            self._where,
            len(ids),
            lambda: str(self._tokenizer.decode_batch([list(ids)], skip_special_tokens=skip_special)[0]),
        )

    def stream(self, skip_special: bool) -> Stream:
        """
        Raises:
            SourceError: a decoder that cannot be streamed.
        """
        kinds = [d.get("type") for d in self._decoders]
        left_out = self._left_out if skip_special else frozenset()
        if kinds and set(kinds) == {"ByteLevel"}:
            return ByteStream(lambda token: b"" if token in left_out else self._bytes_of(token))
        for decoder in self._decoders:
            if decoder.get("type") not in LOCAL or decoder.get("stop", 0):
                raise SourceError(
                    f"{self._where}: text cannot be streamed through the decoder {json.dumps(decoder)} "
                    f"(allowed: ByteLevel alone, or any of {', '.join(LOCAL)}); decode whole generations instead"
                )
        falls_back = "ByteFallback" in kinds
        return WindowStream(
            lambda ids: self.decode(ids, skip_special),
            lambda token: token in left_out or self._tokenizer.id_to_token(token) is None,
            lambda token: falls_back and BYTE_TOKEN.fullmatch(self._tokenizer.id_to_token(token) or "") is not None,
        )

    @cached_property
    def _left_out(self) -> frozenset[int]:
        """What decoding leaves out: a special token that is found in normalized text it knows by how that spells it,
        and so not always."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(i for i in self.special if not added[i].normalized or not self.decode([i], skip_special=True))

    def id_of(self, token: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def _bytes_of(self, token: int) -> bytes:
        """As the ByteLevel decoder has it: an added token is text when one of its characters stands for no byte."""
        spelled = self._tokenizer.id_to_token(token)
        if spelled is None:
            return b""
        values = [_BYTE_OF.get(c) for c in spelled]
        return spelled.encode() if None in values else bytes(v for v in values if v is not None)


def _flat(decoder: Any, where: str) -> list[Mapping[str, Any]]:
    """The decoders of a sequence, of sequences too; each with a `type`.

    Raises:
        SourceError: something else stands where a decoder should; the package takes several things for one.
    """
    if decoder is None:
        return []
    if not isinstance(decoder, Mapping) or not isinstance(decoder.get("type"), str):
        raise SourceError(f"{where}: {decoder!r:.80} is no decoder with a type")
    if decoder["type"] == "Sequence":
        inner = decoder.get("decoders")
        return [d for one in (inner if isinstance(inner, list) else ()) for d in _flat(one, where)]
    return [decoder]


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies: GPT-2's `bytes_to_unicode`, turned round.

    Printable bytes of Latin-1 stand for themselves, the others for U+0100 and up, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()

"""Decoding id by id: two ways to know what the next id makes certain, and no way to half a character.

Byte-level vocabularies hold bytes, so an incremental UTF-8 decoder is all it takes. Others are decoded by a program in
tokenizer.json that looks at neighbours (the first space is dropped, bytes are spelled as tokens of their own), so a
window of ids is decoded again for each id.
"""

import codecs
from collections.abc import Callable, Sequence


class ByteStream:
    """For vocabularies of bytes. Malformed UTF-8 becomes U+FFFD as in `bytes.decode(errors="replace")`."""

    def __init__(self, bytes_of: Callable[[int], bytes]):
        """`bytes_of(id)`: empty for ids to leave out."""
        self._bytes_of = bytes_of
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._utf8.decode(self._bytes_of(token))

    def end(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowStream:
    """For decoders that look at neighbours, but no further back than the last token that shows.

    The window is that token and what came after it. What decoding it adds when an id joins is the id's text, except
    for tokens that stand for single bytes: what a run of those means is known only when it is over, because one wrong
    byte turns all of the run into U+FFFD (`ByteFallback` of tokenizers).
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], leaves_out: Callable[[int], bool], is_byte: Callable[[int], bool]
    ):
        """
        Args:
            decode: ids to text.
            leaves_out: whether it leaves an id out; runs of bytes go on across such an id.
            is_byte: whether an id stands for one byte.
        """
        self._decode, self._leaves_out, self._is_byte = decode, leaves_out, is_byte
        self._window: list[int] = []
        self._given = ""  # the part of the window's text that was returned already

    def push(self, token: int) -> str:
        if self._leaves_out(token):
            return ""
        self._window.append(token)
        if self._is_byte(token):
            return ""
        text = self._rest()
        alone = self._decode([token])
        if alone and not alone.isspace():
            self._window, self._given = [token], alone
        return text

    def end(self) -> str:
        return self._rest()

    def _rest(self) -> str:
        text = self._decode(self._window)
        if not text.startswith(self._given):
            raise AssertionError(f"the decoder changed {self._given!r} to {text!r} in hindsight")
        new, self._given = text[len(self._given) :], text
        return new

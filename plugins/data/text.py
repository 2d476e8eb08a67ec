"""Texts: plain files, JSON Lines and Parquet, as documents of tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.digest import InputFile
from pipeline.errors import ConfigError
from pipeline.stage import Results
from plugins.data import documents, encode
from plugins.data.corpus import Some, Tokenized, tokenized
from plugins.data.documents import Format
from plugins.data.faults import Faults
from plugins.data.language import Language
from plugins.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Text(Language):
    """Documents of text.

    Attributes:
        format: `auto` goes by the ends of names: .jsonl, .parquet; all others are plain text.
        field: of JSON Lines and Parquet, the one that holds the text.
        separator: of plain text, the line that stands between documents; None: a file is one document.
        begin: begin a document with BOS, where the tokenizer does so with texts.
        end: the token that ends a document; `auto`: the one that the vocabulary has for it; None: none.
    """

    format: Format = "auto"
    field: str = "text"
    separator: str | None = None
    begin: bool = True
    end: str | None = "auto"

    def _look(self, file: InputFile, faults: Faults) -> None:
        documents.check(file.path, self.format, self.field, self.separator, faults)

    def _able(self, tokenizer: Tokenizer | None) -> Tokenizer:
        if tokenizer is None:
            raise ConfigError("data: texts need a tokenizer, and the checkpoint has none; tokenizer= says where one is")
        return tokenizer

    def _tokenized(self, results: Results, file: InputFile, tokenizer: Tokenizer) -> Tokenized:
        frame = encode.Frame.of(tokenizer, self.begin, self.end)
        form = documents.format_of(file.path, self.format)
        options: dict[str, Any] = {
            "kind": form, "tokenizer": tokenizer.identity, "frame": [frame.before, frame.after],
            **({"separator": self.separator} if form == "text" else {"field": self.field}),
        }  # fmt: skip

        def read(faults: Faults) -> Iterator[Some]:
            parts = documents.parts(file.path, self.format, self.field, self.separator, faults)
            first = True
            for e in encode.encoded(parts, tokenizer):
                before, after = frame.before if first else (), frame.after if e.last else ()
                yield Some([*before, *e.ids, *after] if before or after else e.ids, (), e.last, e.at)
                first = e.last

        return tokenized(results, file, options, tokenizer.vocab_size, read)

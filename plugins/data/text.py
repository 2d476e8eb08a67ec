"""Texts: plain files, JSON Lines and Parquet, as documents of tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.digest import InputFile
from pipeline.errors import ConfigError, Problem, SourceError
from pipeline.stage import Checkpoint, Results
from pipeline.training import DataPlan, Splits
from plugins.data import documents, encode, sources
from plugins.data.corpus import Some, Tokenized, tokenized
from plugins.data.documents import Format
from plugins.data.faults import Faults
from plugins.data.language import check_length, plan, split
from plugins.data.shares import share
from plugins.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Text:
    """Documents, packed into rows.

    Attributes:
        files: paths; .gz is decompressed.
        length: tokens that a row has, at most.
        format: `auto` goes by the ends of names: .jsonl, .parquet; all others are plain text.
        field: of JSON Lines and Parquet, the one that holds the text.
        separator: of plain text, the line that stands between documents; None: a file is one document.
        held_out: share of the documents that are for evaluation only.
        held_out_files: files that are for evaluation only.
        begin: begin a document with BOS, where the tokenizer does so with texts.
        end: the token that ends a document; `auto`: the one that the vocabulary has for it; None: none.
    """

    files: tuple[str, ...]
    length: int = 256
    format: Format = "auto"
    field: str = "text"
    separator: str | None = None
    held_out: float = 0.0
    held_out_files: tuple[str, ...] = ()
    begin: bool = True
    end: str | None = "auto"

    def __post_init__(self) -> None:
        check_length(self.length)
        share(self.held_out)

    def inputs(self) -> tuple[InputFile, ...]:
        """See `pipeline.training.Dataset`, for all of these."""
        return (*self._found(Faults()), *self._apart(Faults()))

    def check(self, checkpoint: Checkpoint | None) -> tuple[Problem, ...]:
        faults = Faults()
        for file in (*self._found(faults), *self._apart(faults)):
            try:
                documents.check(file.path, self.format, self.field, self.separator, faults)
            except SourceError as why:
                faults.add("data.files", str(why))
        return faults.problems

    def plan(self, checkpoint: Checkpoint | None) -> DataPlan:
        return plan(sum(f.nbytes for f in self.inputs()), self.length)

    def open(self, results: Results, tokenizer: Tokenizer | None) -> Splits:
        if tokenizer is None:
            raise ConfigError("data: texts need a tokenizer, and the checkpoint has none; tokenizer= says where one is")
        faults = Faults()
        found, apart = self._found(faults), self._apart(faults)
        faults.check()
        files = [self._tokenized(results, file, tokenizer) for file in found]
        kept = [self._tokenized(results, file, tokenizer) for file in apart]
        return split(files, kept, self.held_out, self.length)

    def _found(self, faults: Faults) -> tuple[InputFile, ...]:
        return sources.found(self.files, "data.files", faults)

    def _apart(self, faults: Faults) -> tuple[InputFile, ...]:
        return sources.found(self.held_out_files, "data.held_out_files", faults) if self.held_out_files else ()

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

"""What texts and chats share: files of documents, which are tokenized once each and packed into rows."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.digest import InputFile
from pipeline.errors import ConfigError, PlanError, Problem, SourceError
from pipeline.files import spoken
from pipeline.stage import Checkpoint, Results
from pipeline.training import DataPlan, Splits
from plugins.data import sources
from plugins.data.corpus import Corpus, Tokenized
from plugins.data.faults import Faults
from plugins.data.rows import Packed, language
from plugins.data.shares import is_held_out, share
from plugins.tokenizers.tokenizer import Tokenizer

TOKEN_NBYTES = 4.0  # of text that a token has: about 4.5 in English, 2 to 4 elsewhere and in code
WORKING_NBYTES = 192 << 20  # that encoding takes at most, beside the tokenizer: measured 130 MiB


@dataclass(frozen=True)
class Language(ABC):
    """Files of documents; a `pipeline.training.Dataset` but for how one is read.

    Attributes:
        files: paths; .gz is decompressed.
        length: tokens that a row has, at most. What a longer document has beyond begins another piece.
        held_out: share of the documents that are for evaluation only.
        held_out_files: files that are for evaluation only.
    """

    files: tuple[str, ...]
    length: int = 256
    held_out: float = 0.0
    held_out_files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigError(f"data.length={self.length}: a row has at least one token")
        share(self.held_out)

    def inputs(self) -> tuple[InputFile, ...]:
        """See `pipeline.training.Dataset`, for all of these."""
        return (*self._found(Faults()), *self._apart(Faults()))

    def check(self, checkpoint: Checkpoint | None) -> tuple[Problem, ...]:
        faults = Faults()
        found, apart = self._found(faults), self._apart(faults)
        sources.check_apart(found, apart, "data.held_out_files", faults)
        for file in (*found, *apart):
            try:
                self._look(file, faults)
            except SourceError as why:
                faults.add(file.path, str(why).removeprefix(f"{spoken(file.path)}: "))
        return faults.problems

    def plan(self, checkpoint: Checkpoint | None) -> DataPlan:
        found, apart = (sum(f.nbytes for f in some(Faults())) for some in (self._found, self._apart))
        tokens, held_out = (int(n / TOKEN_NBYTES) for n in (found, apart + self.held_out * found))
        # At most a token for a byte, four bytes each, and a document for every twenty.
        disk = 5 * (found + apart)
        specs, examples = language(self.length), max(1, tokens // self.length)
        return DataPlan(examples, specs, tokens, disk, WORKING_NBYTES, held_out // self.length)

    def open(self, results: Results, tokenizer: Tokenizer | None) -> Splits:
        able = self._able(tokenizer)
        faults = Faults()
        found, apart = self._found(faults), self._apart(faults)
        faults.check()
        files, kept = ([self._tokenized(results, file, able) for file in some] for some in (found, apart))
        return packed(files, kept, self.held_out, self.length)

    def _found(self, faults: Faults) -> tuple[InputFile, ...]:
        return sources.found(self.files, "data.files", faults)

    def _apart(self, faults: Faults) -> tuple[InputFile, ...]:
        return sources.found(self.held_out_files, "data.held_out_files", faults) if self.held_out_files else ()

    @abstractmethod
    def _look(self, file: InputFile, faults: Faults) -> None:
        """Whether a file is what it should be, its beginning and its end."""

    @abstractmethod
    def _able(self, tokenizer: Tokenizer | None) -> Tokenizer:
        """Raises ConfigError: it cannot be used for these."""

    @abstractmethod
    def _tokenized(self, results: Results, file: InputFile, tokenizer: Tokenizer) -> Tokenized:
        """Its documents as tokens, kept with the results."""


def packed(files: Sequence[Tokenized], held_out: Sequence[Tokenized], part: float, length: int) -> Splits:
    """The documents of `files` in rows of `length` predictions.

    Args:
        held_out: files that are held out.
        part: share of the documents of `files` that is held out as well.

    Raises:
        PlanError: no example is left to train on, or none is held out where some should be.
    """
    out = is_held_out(part)
    train = Packed(Corpus.of(files, lambda d: ~out(d)), length)
    apart = Packed(Corpus.of(files, out).with_all(held_out), length)
    problems = []
    if not len(train) and len(apart) and not held_out:
        text = f"{part}: all of {_all(apart.corpus)} are held out, and none is left to train on; equal ones go together"
        problems.append(Problem("data.held_out", text))
    elif not len(train):
        problems.append(Problem("data.files", f"{_all(train.corpus)} to train on; a prediction takes two tokens"))
    if (part or held_out) and not len(apart):
        text = (
            f"{_all(apart.corpus)} are held out; data.held_out=SHARE takes more, data.held_out_files=[FILE] whole "
            "files, and data.separator=LINE divides plain text, which is one document otherwise"
        )
        problems.append(Problem("data.held_out", text))
    if problems:
        raise PlanError(problems, exit_code=SourceError.exit_code)
    facts = {
        "documents": len(train.corpus.lengths),
        "documents of one token, left out": sum(int((p.corpus.lengths < 2).sum()) for p in (train, apart)),
        "tokens to train on": train.packing.used,
        "share of padding": train.packing.waste,
    }
    if (learned := train.learned) is not None:
        facts["tokens of answers, which alone are learned"] = learned
        facts["chats longer than a row, in pieces without what came before"] = int(
            (train.corpus.lengths > length + 1).sum()
        )
    return Splits(train, apart if len(apart) else None, facts)


def _all(corpus: Corpus) -> str:
    counts = {"document": len(corpus.lengths), "token": int(corpus.lengths.sum())}
    return " with ".join(f"{n:,} {what}{'' if n == 1 else 's'}" for what, n in counts.items())

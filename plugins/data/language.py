"""What texts and chats share: how long rows are, what a plan can say, and what is held out."""

from collections.abc import Sequence

from pipeline.errors import ConfigError, PlanError, Problem, SourceError
from pipeline.training import DataPlan, Splits
from plugins.data.corpus import Corpus, Tokenized
from plugins.data.rows import Packed, language
from plugins.data.shares import is_held_out

TOKEN_NBYTES = 4.0  # of text that a token has: about 4.5 in English, 2 to 4 elsewhere and in code
WORKING_NBYTES = 192 << 20  # that encoding takes at most, beside the tokenizer: measured 130 MiB


def check_length(length: int) -> None:
    """Raises ConfigError: no length of a row."""
    if length < 1:
        raise ConfigError(f"data.length={length}: a row has at least one token")


def split(files: Sequence[Tokenized], held_out: Sequence[Tokenized], part: float, length: int) -> Splits:
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
    if not len(train):
        problems.append(Problem("data.files", f"{_all(train.corpus)} to train on; a prediction takes two"))
    if (part or held_out) and not len(apart):
        text = (
            f"{_all(apart.corpus)} are held out; data.held_out=SHARE takes more, data.held_out_files=[FILE] whole "
            "files, and data.separator=LINE divides plain text, which is one document otherwise"
        )
        problems.append(Problem("data.held_out", text))
    if problems:
        raise PlanError(problems, exit_code=SourceError.exit_code)
    facts = {"documents": len(train.corpus.lengths), "tokens": train.packing.used, "padding": train.packing.waste}
    return Splits(train, apart if len(apart) else None, facts)


def _all(corpus: Corpus) -> str:
    return f"{len(corpus.lengths):,} documents with {int(corpus.lengths.sum()):,} tokens"


def plan(nbytes: int, length: int) -> DataPlan:
    """What is known of so many bytes of text."""
    tokens = int(nbytes / TOKEN_NBYTES)
    # At most a token for a byte, four bytes each, and a document for every twenty.
    return DataPlan(max(1, tokens // length), language(length), tokens, 5 * nbytes, WORKING_NBYTES)

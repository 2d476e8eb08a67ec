"""Whom a training learns of (distillation), and whether that one can teach it."""

from collections.abc import Iterator
from math import prod

from pipeline.errors import Problem, WeightmillError
from pipeline.mesh import Parameter
from pipeline.stage import Checkpoint
from plugins.engine.engine import Engine
from plugins.models.family import family_of, vocabulary

WHERE = "stages.teacher"
PROBE = "In 2 tokenizers: naïve {x: 0.5}\n"  # what is split alike
PROBED = 2048  # tokens that are looked at, of all


def problems(engine: Engine, student: Checkpoint, teacher: Checkpoint) -> Iterator[Problem]:
    """What keeps one checkpoint from learning of another: they have to mean the same by a token.

    Raises:
        PlanError: no family knows one of them.
    """
    if teacher is student:
        return
    if engine.mesh.size > 1:
        yield Problem(WHERE, "a teacher is for one device so far; mesh=single")
    own, theirs = (vocabulary(parameters(engine, c)) for c in (student, teacher))
    if own is None or theirs is None:
        yield Problem(WHERE, f"a teacher of {_kind(teacher)} for {_kind(student)}: both have to be language models")
    elif own != theirs:
        yield Problem(WHERE, f"has a vocabulary of {theirs:,} tokens, and what is trained one of {own:,}")
    elif (why := _tokenizers(engine, student, teacher)) is not None:
        yield Problem(WHERE, why)


def parameters(engine: Engine, checkpoint: Checkpoint) -> tuple[Parameter, ...]:
    return family_of(checkpoint.config, engine.families).parameters(checkpoint.config)


def values(table: tuple[Parameter, ...]) -> int:
    return sum(prod(p.shape) for p in table)


def _kind(checkpoint: Checkpoint) -> str:
    return str(checkpoint.config.get("model_type"))


def _tokenizers(engine: Engine, *both: Checkpoint) -> str | None:
    """How their tokenizers differ; None: they do not, or one of them has none and takes the other's."""
    if not all(engine.tokenizer.exists(c) for c in both):
        return None
    try:
        student, teacher = (engine.tokenizer.load(c) for c in both)
    except WeightmillError as why:
        return str(why)
    other, count = "has another tokenizer than what is trained", min(student.vocab_size, teacher.vocab_size)
    for i in range(0, count, max(1, count // PROBED)):
        own, theirs = (t.decode([i], skip_special=False) for t in (student, teacher))
        if own != theirs:
            return f"{other}: token {i:,} is {theirs!r:.40} there and {own!r:.40} here"
    own, theirs = (t.encode(PROBE) for t in (student, teacher))
    return f"{other}: {PROBE!r} is {theirs} there and {own} here" if own != theirs else None

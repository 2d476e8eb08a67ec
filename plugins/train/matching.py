"""What is for what: objectives, data and models; and who can teach whom (distillation)."""

from collections.abc import Iterator, Sequence

from pipeline.errors import PlanError, Problem, WeightmillError
from pipeline.hooks import optional
from pipeline.mesh import Parameter
from pipeline.stage import Checkpoint
from pipeline.training import DataPlan
from plugins.engine.engine import Engine
from plugins.models.family import family_of, vocabulary
from plugins.train.objectives import Objective, ObjectiveHooks

TEACHER = "stages.teacher"
PROBE = "In 2 tokenizers: naïve {x: 0.5}\n"  # what is split alike
SAID = ("tokens", "inputs", "targets")  # of what data have, what tells which they are
PROBED = 2048  # tokens that are looked at, of all


def misfits(
    objective: Objective, checkpoint: Checkpoint, table: Sequence[Parameter], data: DataPlan
) -> Iterator[Problem]:
    """What of an objective, data and a model is not for each other.

    Args:
        table: the model's parameters.
    """
    reads, kind = optional(objective, ObjectiveHooks, "reads"), _kind(checkpoint)
    lacks = [f"{array} of {dtype}" for array, dtype in reads.items() if data.specs.get(array, ((), ""))[1] != dtype]
    if lacks:
        has = " and ".join(f"{array} of {dtype}" for array, (_, dtype) in data.specs.items() if array in SAID)
        text = f"{type(objective).__name__} takes {' and '.join(lacks)}, and the data have {has}; of train/objective=, "
        text += "causal_lm and distillation are for texts, classification for classes, regression for numbers"
        yield Problem("train.objective", text)
    words = vocabulary(table)
    if "tokens" in data.specs and words is None:
        yield Problem("data", f"are texts, and {kind!r} is a model for rows of numbers; data=table, images, digits")
    if "inputs" in data.specs and words is not None:
        yield Problem("data", f"are rows of numbers, and {kind!r} is a language model; data=text, chat")


def teaching(engine: Engine, student: Checkpoint, teacher: Checkpoint) -> Iterator[Problem]:
    """What keeps one checkpoint from learning of another: they have to mean the same by a token.

    Raises:
        PlanError: no family knows one of them.
    """
    if teacher is student:
        return
    if engine.mesh.size > 1:
        yield Problem(TEACHER, "a teacher is for one device so far; mesh=single")
    own, theirs = (vocabulary(parameters(engine, c)) for c in (student, teacher))
    if own is None or theirs is None:
        yield Problem(TEACHER, f"a teacher of {_kind(teacher)} for {_kind(student)}: both have to be language models")
    elif own != theirs:
        yield Problem(TEACHER, f"has a vocabulary of {theirs:,} tokens, and what is trained one of {own:,}")
    elif (why := _tokenizers(engine, student, teacher)) is not None:
        yield Problem(TEACHER, why)


def fits(engine: Engine, teacher: Checkpoint) -> None:
    """
    Raises:
        PlanError: as `Engine.parameters`, of a teacher.
    """
    try:
        engine.parameters(teacher)
    except PlanError as why:
        said = [Problem(f"{TEACHER}: {p.where}", p.message) for p in why.problems]
        raise PlanError(said, exit_code=why.exit_code) from None


def parameters(engine: Engine, checkpoint: Checkpoint) -> tuple[Parameter, ...]:
    return family_of(checkpoint.config, engine.families).parameters(checkpoint.config)


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

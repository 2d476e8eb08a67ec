"""What a model loses where some of its tensors are others and the rest is as it was: of `sensitivity` and `trials`."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import exp
from typing import Any

from pipeline import meter, scored, texts
from pipeline.coded_store import Unpacked
from pipeline.engine import Against, Engine, Score, Session, Windows, scoring
from pipeline.errors import ConfigError
from pipeline.ops import Kernel
from pipeline.running import member
from pipeline.stage import Checkpoint, Context, Footprint
from pipeline.tensors.views import MappedStore


@dataclass(frozen=True)
class Compared:
    """A loaded model, and how it scored a text as it was.

    Attributes:
        session: the model.
        base: its score.
        ids: the text.
        windows: how it is cut.
        against: the states that it had.
    """

    session: Session
    base: Score
    ids: list[int]
    windows: Windows
    against: Against

    def cost(self, tensors: Collection[str], checkpoint: Checkpoint) -> dict[str, Any]:
        """Perplexity, KL divergence (nats a token) and top-1 agreement with `tensors` as `checkpoint` has them."""
        with self.session.replaced(tensors, checkpoint):
            score = self.session.score(self.ids, self.windows, keep=None, against=self.against)
        return {"perplexity": exp(score.nll), "kl": score.kl, "top1": score.top1}


def unpacked(decode: Checkpoint, changed: Collection[str], unpack: Kernel) -> Checkpoint:
    """`decode` with the tensors that are to be exchanged as values: a model holds a parameter in one encoding, and a
    source may have them packed in another one than they are to take."""
    packed = frozenset(n for n in changed if decode.store.specs[n].scheme is not None)
    store = MappedStore(decode.store, Unpacked(packed, unpack)) if packed else decode.store
    return replace(decode, store=store)


@contextmanager
def compared(
    ctx: Context, engine: Engine, decode: Checkpoint, text: str, windows: Windows, kept: str
) -> Iterator[Compared]:
    """The model of `decode` in fp32, so that unpacked values are those of packed tensors, and nothing recompiles.

    Args:
        decode: with whatever is to be exchanged as values.
        windows: settled.
        kept: stem of the files in the run's folder which the states lie in meanwhile.
    """
    session = ctx.models.load(engine, decode, plain=True)
    ids = session.tokenizer.encode(texts.read(text))
    states = ctx.run_dir / f"{kept}.npz"
    base = session.score(ids, windows, keep=states, against=None)
    against = Against(states, states.with_suffix(".head.npz"))
    session.keep_head(against.head)
    member.agreed()  # of several processes the first has written it, for all
    yield Compared(session, base, ids, windows, against)
    member.agreed()  # nobody reads it any more
    if member.first():
        for path in (against.states, against.head):
            meter.wrote(path.stat().st_size)
            path.unlink()


def apart(checkpoint: Checkpoint, verb: str) -> None:
    """
    Raises:
        ConfigError: tensors of the checkpoint are only together what they were, and are to be looked at one by one.
    """
    if checkpoint.turned is not None:
        text = "looks at tensors one by one, and models rotate inputs of packed ones alone"
        raise ConfigError(f"activations_rotate: {verb} {text}; activations_rotate=null")
    if names := frozenset().union(*(f.names for f in checkpoint.folded.values())):
        text = f"has {len(names)} tensors that only together are what they were, such as {min(names)}"
        raise ConfigError(f"calibrate: {verb} looks at tensors one by one, and this {text}; calibrate=gptq or imatrix")


def files(kept: str) -> tuple[str, ...]:
    """What `compared` writes."""
    return f"{kept}.npz", f"{kept}.partial.npz", f"{kept}.head.npz"


def footprint(
    engine: Engine, decode: Checkpoint, text: str, windows: Windows, passes: int, where: str
) -> tuple[Footprint, Windows]:
    """What `passes` scorings of a text take, one of them of the model as it was; and how the text is cut for that.

    Args:
        decode: as for `compared`.
        where: the key of `windows`, for errors.
    """
    file = texts.input_file(text)
    settled = scored.settled(windows, decode, passes, where)
    usage = scoring([file.nbytes], settled, keeps=True)
    base, plain = (engine.plan(decode, plain=p, usage=usage) for p in (False, True))
    values = sum(s.size for s in decode.store.specs.values())
    takes = replace(
        plain,
        host_nbytes=base.host_nbytes + 4 * values,
        inputs=(*base.inputs, file),
        moved_nbytes=passes * plain.moved_nbytes,
        reads=scored.said(settled, windows),
    )
    return takes, settled

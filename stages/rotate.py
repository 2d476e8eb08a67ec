"""Rotate: hidden states by an orthogonal matrix that goes into the weights around them; the model stays what it was.

A view: nothing is computed before somebody reads. Only what fuses is done: no operation is added to the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pipeline.errors import PlanError, Problem
from pipeline.hooks import optional
from pipeline.ops import Kernel
from pipeline.rotated import RotatedStore, Stream
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.folds import Fold
from pipeline.tensors.rotation import Rotation
from pipeline.tensors.spec import TensorSpec
from pipeline.topology import Feeds, channels
from stages.outline import Family, FamilyHooks

EMBEDDING, HEAD, TIED = "model.embed_tokens.weight", "lm_head.weight", "tie_word_embeddings"


@dataclass(frozen=True)
class Rotate:
    """Rotate what blocks read and write. An embedding that is the head as well becomes two tensors.

    Attributes:
        rotation: which matrix.
        families: what knows which tensors read and write hidden states.
        allow_requantize: also unpack what is packed, which is rounded again then.
        unpack: decodes it.
    """

    rotation: Rotation
    families: tuple[Family, ...]
    allow_requantize: bool = False
    unpack: Kernel = field(default_factory=partial(Kernel, "dequantize", ("numpy",)))

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        """
        Raises:
            PlanError: a model that no rotation goes through, or a packed tensor; says which.
        """
        kind, config = checkpoint.config.get("model_type"), dict(checkpoint.config)
        family = next((f for f in self.families if kind in f.model_types), None)
        feeds = () if family is None else optional(family, FamilyHooks, "feeds")
        if family is None or not feeds:
            text = f"knows nothing of who reads hidden states in a model of model_type {kind!r}: its family's `feeds` "
            raise PlanError([Problem("calibrate.rotate", f"{text}say so")])
        specs = dict(checkpoint.store.specs)
        tied = bool(config.get(TIED, optional(family, FamilyHooks, "tied")))
        if tied:
            specs[HEAD], config[TIED] = specs[EMBEDDING], False
        stream, problems = self._stream(family, feeds, specs, config, tied=tied)
        packed = [n for n in (*stream.reads, *stream.writes) if specs[n].scheme is not None]
        if packed and not self.allow_requantize:
            text = f"is {specs[packed[0]].encoding}, as are {len(packed)} tensors that would be rotated; "
            problems += [Problem(packed[0], f"{text}allow_requantize=true unpacks them")]
        if problems:
            raise PlanError(problems)
        again = partial(RotatedStore, stream=stream, rotation=self.rotation, unpack=self.unpack)
        names = frozenset((*stream.reads, *stream.writes, *stream.norms))
        folded = {**checkpoint.folded, "rotate": Fold(names, "rotate", checkpoint.store, again)}
        return replace(checkpoint, store=again(checkpoint.store), config=config, folded=folded)

    def _stream(
        self, family: Family, feeds: Sequence[Feeds], specs: Mapping[str, TensorSpec], config: Mapping[str, Any], *,
        tied: bool,
    ) -> tuple[Stream, list[Problem]]:  # fmt: skip
        """Who reads and writes hidden states, by the logical axes of parameters; and what is in the way."""
        parameters = family.parameters(config)
        fed = [c for c in channels(feeds, specs, parameters) if len(specs[c.source].shape) == 1]
        by = {name: c.source for c in fed for name in c.consumers}
        reads, writes, problems = dict[str, str | None](), set[str](), list[Problem]()
        for p in parameters:
            axes = p.axes[1:] if p.stack else p.axes
            for name in p.names if "embed" in axes else ():
                if len(axes) > 1 and axes[-2] == "embed":
                    writes.add(name)
                elif name.endswith("norm.weight"):
                    if name not in by.values():
                        text = "scales what is added to hidden states, and no rotation goes through that"
                        problems.append(Problem(name, text))
                elif len(axes) > 1 and name not in by and not name.endswith("bias") and name != EMBEDDING:
                    problems.append(Problem(name, "reads hidden states, and its family does not say behind which norm"))
                else:
                    reads[name] = by.get(name)
        width = specs[EMBEDDING].shape[-1]
        if (why := self.rotation.problem(width)) is not None:
            problems.append(Problem("calibrate.rotate", why))
        norms = {c.source: c.plus_one for c in fed}
        return Stream(reads, frozenset(writes), norms, (HEAD, EMBEDDING) if tied else None), problems

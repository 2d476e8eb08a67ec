"""sample: the next token of every sequence, as an engine chooses it of logits, by `plugins.engine.sampling`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pipeline.bench.op import Case, Part
from plugins.bench.ops import on_device
from plugins.bench.ops.rows import Rows

OP: Final = "sample"
SPREAD: Final = 3.0  # of logits: as peaked as those of a small model
# Greedy, and the filters that generation_config.json of published models sets most often.
KINDS: Final[dict[str, dict[str, float]]] = {"greedy": {}, "top_k 50, top_p 0.9": {"top_k": 50, "top_p": 0.9}}


@dataclass(frozen=True)
class Sample(Rows):
    """Logits of a vocabulary. Noise is drawn before, so that the same token is right for all."""

    WIDTH = "bench.vocabulary"

    def cases(self) -> Iterator[Case]:
        drawn = np.random.default_rng(0)
        for rows in self.rows:
            logits = (SPREAD * drawn.standard_normal((rows, self.width))).astype(np.float32)
            noise = drawn.gumbel(size=(rows, self.width)).astype(np.float32)
            for kind, filters in KINDS.items():
                args = (logits, noise) if filters else (logits,)
                part = Part(args, filters, lambda y: y, definition=chosen)
                name = f"f32 [{rows}, {self.width}], {kind}"
                yield Case(OP, name, args, filters, 0.0, len(args) * logits.nbytes, (part,))


def chosen(logits: Any, noise: Any = None, *, top_k: int = 0, top_p: float = 1.0) -> Any:
    """Tokens [B] int32 of logits [B, V] float32, by sorting all of them: what everything else is held to.

    Args:
        noise: [B, V], Gumbel's: the largest sum is a draw from the softmax; None: the likeliest is taken.
    """
    if noise is None:
        return logits.argmax(axis=-1).astype(np.int32)
    found = []
    for row, own in zip(logits.astype(np.float64), noise, strict=True):
        order = np.argsort(-row, kind="stable")[: top_k or len(row)]
        weight = np.exp(row[order] - row[order[0]])
        weight /= weight.sum()
        kept = order[np.cumsum(weight) - weight < top_p]
        found.append(kept[np.argmax((row + own)[kept])])
    return np.array(found, np.int32)


def compiled(case: Case) -> Callable[[], Any]:
    """Ours, as a step of the engine has it."""
    import jax

    from plugins.engine import sampling
    from plugins.engine.options import Sampling

    filters: Mapping[str, Any] = case.options
    numbers = sampling.numbers(Sampling(temperature=1.0, **filters))
    program = jax.jit(sampling.draw_likely if filters else sampling.likeliest)
    args = (*jax.device_put(case.args), *([numbers] if filters else []))
    return on_device.compiled(program, *args)

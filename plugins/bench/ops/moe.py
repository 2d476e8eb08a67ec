"""moe: a layer of experts, some of which each token chooses."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.bench.op import Case, Part
from pipeline.errors import ConfigError
from pipeline.tensors.qtensor import QTensor
from pipeline.testing.memory import cut
from plugins.bench.ops import data
from plugins.bench.ops.data import Plain

OUTPUTS = 4  # that the definition computes too, of one token


def activation(both: Any) -> Any:
    """gpt-oss's clamped SwiGLU, of gate and up by turns, in NumPy and in JAX alike."""
    gate, up = both[..., ::2], both[..., 1::2]
    gate, up = gate.clip(None, 7), up.clip(-7, 7)
    return gate / (1 + _exp(-1.702 * gate)) * (up + 1)


def _exp(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return np.exp(x)
    import jax.numpy as jnp

    return jnp.exp(x)


@dataclass(frozen=True)
class Moe:
    """See `pipeline.bench.op.Suite`.

    Attributes:
        shape: experts, how many a token chooses, values of a token, values inside of an expert.
        tokens: at once.
        formats: of the weights.
        activations: format of x; None: bfloat16 with such weights, else float32.
    """

    shape: tuple[int, ...]
    tokens: tuple[int, ...]
    formats: tuple[str, ...]
    activations: Plain | None = None

    def __post_init__(self) -> None:
        data.check("bench.experts", self.formats)
        data.sizes("bench.tokens", self.tokens)
        data.sizes("bench.moe", self.shape, 4)
        if self.shape[1] > self.shape[0]:
            raise ConfigError(f"bench.moe={list(self.shape)}: {self.shape[1]} of {self.shape[0]} experts are chosen")

    @property
    def nbytes(self) -> int:
        experts, _, hidden, inside = self.shape
        return 3 * 4 * experts * 3 * hidden * inside

    def cases(self) -> Iterator[Case]:
        experts, choices, hidden, inside = self.shape
        for name in self.formats:
            both = data.weights(name, (experts, 2 * inside, hidden))
            out = data.weights(name, (experts, hidden, inside), seed=1)
            for tokens in self.tokens:
                rng = np.random.default_rng(tokens)
                dtype = data.activations(name, self.activations)
                x = (data.values((tokens, hidden), dtype) / 32).astype(dtype)
                chosen = np.stack([rng.permutation(experts)[:choices] for _ in range(tokens)]).astype(np.int32)
                share = np.full((tokens, choices), 1 / choices, np.float32)
                read = len(np.unique(chosen)) / experts  # of the experts
                part = Part(
                    (x[:1], chosen[:1], share[:1], (both,), (None,), _outputs(out), None), {"activation": activation},
                    lambda y: y[:1, :OUTPUTS],
                )  # fmt: skip
                case = f"{name} {experts} × [{hidden}, {inside}], {choices} chosen × {tokens}"
                yield Case(
                    "moe", f"{case}{data.said(self.activations)}",
                    (x, chosen, share, (both,), (None,), out, None), {"activation": activation},
                    2.0 * tokens * choices * 3 * hidden * inside, read * (both.nbytes + out.nbytes) + 2 * x.nbytes,
                    (part,),
                )  # fmt: skip


def _outputs(w: Any) -> Any:
    """The first of what experts give; of tiles whose rows go together, all would be needed."""
    if isinstance(w, QTensor) and w.scheme.block_rows != 1:
        raise ConfigError("bench.experts: moe is measured with formats whose rows are packed each on its own")
    return cut(w, (slice(None), slice(0, OUTPUTS)))

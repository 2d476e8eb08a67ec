"""The loop over layers that decoder-only models share: embed, blocks, norm, head."""

from collections.abc import Callable
from typing import Any, cast

import jax.numpy as jnp
from flax import nnx

from plugins.mesh.collectives import embedded, joined, over
from plugins.models.common.cache import Cache, CacheView, LayerShape
from plugins.models.common.layers import RMSNorm
from plugins.models.common.ops import Ops
from plugins.models.common.weights import Weights, gather
from plugins.models.device import unused

Tap = Callable[[str, Any], None]


class Decoder(nnx.Module):
    """A causal language model. Blocks are called `block(x, layer, memory, ops)`, and tell what they `remember`.

    Attributes:
        vocab: size of the vocabulary.
        dtype: name of the dtype that activations have (`bfloat16`, `float32`).
    """

    def __init__(
        self,
        w: Weights,
        block: Callable[[Weights, int], nnx.Module],
        *,
        layers: int,
        vocab: int,
        hidden: int,
        eps: float,
        tied: bool,
        ops: Ops,
        dtype: str,
        plus_one: bool = False,
        embed_scale: float | None = None,
        softcap: float | None = None,
    ):
        m = w.scope("model")
        self.embed_tokens = m.param("embed_tokens.weight", (vocab, hidden), ("vocab", "embed"))
        self.layers = nnx.List([block(m.scope(f"layers.{i}"), i) for i in range(layers)])
        self.norm = RMSNorm(m, "norm", hidden, "embed", eps, plus_one=plus_one)
        self.lm_head = None if tied else w.param("lm_head.weight", (vocab, hidden), ("vocab", "embed"))
        w.ignore(unused(tied=tied))
        self.vocab, self.dtype, self.ops = vocab, dtype, ops
        self.embed_scale, self.softcap = embed_scale, softcap

    @property
    def cache_shapes(self) -> tuple[LayerShape, ...]:
        """What every layer puts into the cache."""
        return tuple(cast(Any, block).cache_shape for block in self.layers)

    def gather(self) -> None:
        """Put together what lies divided, beside the layers: those do so one by one, where they are used."""
        gather(*(part for part in (self.embed_tokens, self.norm, self.lm_head) if part is not None))

    def __call__(
        self,
        tokens: Any,
        positions: Any,
        cache: Cache | None = None,
        *,
        fresh: bool = True,
        tap: Tap | None = None,
        segments: Any = None,
    ) -> tuple[Any, Cache | None]:
        """Hidden states of `tokens`, after the last norm, and the cache with them.

        Args:
            tokens: [B, T] int32.
            positions: [B, T] int32, of each token in its sequence; -1 marks padding, whose outputs mean nothing.
            cache: what came before; None computes without one.
            fresh: promises that the cache is empty.
            tap: is called with (name, array) after the embedding and after every layer.
            segments: [B, T] int32: which document of its row each token is of; others it does not see. Positions begin
                anew with each. None: a row is one document. Not with a cache.
        """
        memory = CacheView(cache, positions, fresh=fresh, segments=segments)
        rows = over(self.embed_tokens.layout, 0)
        x = embedded(self.ops.embed, tokens, self.embed_tokens.get_value(), rows, dtype=jnp.dtype(self.dtype))
        if self.embed_scale is not None:
            x = x * jnp.asarray(self.embed_scale, x.dtype)
        if tap:
            tap("embed", x)
        for i, block in enumerate(self.layers):
            gather(block)
            x = block(x, i, memory, self.ops)
            if tap:
                tap(f"layers.{i}", x)
        return self.norm(x, self.ops), memory.cache

    def logits(self, hidden: Any) -> Any:
        """Next-token logits, float32 [..., vocab], of hidden states [..., hidden]."""
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        out = self.ops.matmul(hidden, head.get_value(), out_dtype=jnp.float32)
        out = joined(out, over(head.layout, 0))
        return out if self.softcap is None else self.softcap * jnp.tanh(out / self.softcap)

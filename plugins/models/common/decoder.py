"""The loop over layers that decoder-only models share: embed, blocks, norm, head."""

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx

from plugins.kernels.varying import axes_of
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
        recompute: of a block only its input is kept for a gradient; the rest is computed again on the way back.
    """

    recompute: bool = False

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

    def gather(self, rows: tuple[str, ...] = ()) -> None:
        """Put together what lies divided, beside the layers: those do so one by one, where they are used.

        Args:
            rows: see `plugins.mesh.collectives.gathered`.
        """
        gather(*(part for part in (self.embed_tokens, self.norm, self.lm_head) if part is not None), rows=rows)

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
            x = self._recomputed(block, x, i, memory) if self.recompute else self._block(block, x, i, memory)
            if tap:
                tap(f"layers.{i}", x)
        return self.norm(x, self.ops), memory.cache

    def _block(self, block: Any, x: Any, layer: int, memory: CacheView) -> Any:
        gather(block, rows=axes_of(memory.positions))
        return block(x, layer, memory, self.ops)

    def _recomputed(self, block: Any, x: Any, layer: int, memory: CacheView) -> Any:
        graph, state = nnx.split(block)
        leaves, tree = jax.tree.flatten(state)

        @jax.checkpoint
        def run(leaves: Any, x: Any) -> Any:
            return self._block(nnx.merge(graph, jax.tree.unflatten(tree, leaves)), x, layer, memory)

        return run(leaves, x)

    @property
    def head(self) -> nnx.Param[Any]:
        """The output matrix [vocab, hidden]; of tied embeddings the embedding."""
        return self.embed_tokens if self.lm_head is None else self.lm_head

    def logits(self, hidden: Any) -> Any:
        """Next-token logits, float32 [..., vocab], of hidden states [..., hidden]."""
        return joined(self.own_logits(hidden, self.head.get_value()), over(self.head.layout, 0))

    def own_logits(self, hidden: Any, head: Any) -> Any:
        """Those of the part of the vocabulary that lies here, by `head`, which is what `self.head` holds."""
        out = self.ops.matmul(hidden, head, out_dtype=jnp.float32)
        return out if self.softcap is None else self.softcap * jnp.tanh(out / self.softcap)

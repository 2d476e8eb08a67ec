"""Losses over a vocabulary, block by block of positions, so that the logits of all of them never exist together, nor do
they for gradients.

    N positions, D hidden, V vocabulary, of which a device may have a range

A loss is a sum, and its cotangent one number: so gradients are taken of every block while its logits are there, and
scaled on the way back. That is three products with the head; a block that is computed again would need four.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from plugins.kernels.gradients import cotangent, given
from plugins.kernels.varying import along, axes_of, zeros
from plugins.mesh.collectives import highest, over, summed_over
from plugins.models.common.decoder import Decoder


def next_token(
    model: Decoder, hidden: Any, targets: Any, weights: Any, z_loss: float, logits_nbytes: int
) -> tuple[Any, Any]:
    """Σ weight · (-log p(target) + z_loss · (log Σ exp(logits))²), and Σ weight of targets that are most probable.

    Args:
        hidden: `[B, T, D]`, after the last norm.
        targets: `[B, T]` int32.
        weights: `[B, T]` float32; 0: not counted.
        logits_nbytes: of a block, at most, unless one position has more.
    """
    axes = over(model.head.layout, 0)

    def block(head: Any, h: Any, fixed: Any, target: Any, weight: Any) -> Any:
        logits = Logits.of(model.own_logits(h, head), axes)
        own = logits.at(target)
        loss = logits.total - own + (z_loss * jnp.square(logits.total) if z_loss else 0.0)
        # What does not count may be anything, and 0 · NaN is NaN.
        return jnp.where(weight == 0, 0.0, loss * weight).sum(), jnp.where(own >= logits.top, weight, 0.0).sum()

    head = model.head.get_value()
    rows = _flat(hidden), targets.reshape(-1), weights.reshape(-1)
    return by_blocks(block, logits_nbytes // (4 * head.shape[0]), head, None, *rows)


def distilled(
    model: Decoder, hidden: Any, teacher: Decoder, theirs: Any, weights: Any, temperature: float, logits_nbytes: int
) -> tuple[Any, Any]:
    """Σ weight · temperature² · KL(teacher ‖ student), of logits divided by the temperature (arXiv 1503.02531, 2.1);
    and Σ weight where both find the same token most probable.

    Args:
        hidden, theirs: `[B, T, D]` of either, after the last norm; theirs has no gradient.
    """
    axes = over(model.head.layout, 0)
    if axes != over(teacher.head.layout, 0):
        raise AssertionError("the heads of a student and its teacher are divided alike")

    def block(head: Any, h: Any, fixed: Any, t: Any, weight: Any) -> Any:
        own = Logits.of(model.own_logits(h, head) / temperature, axes)
        wanted = Logits.of(teacher.own_logits(t, fixed) / temperature, axes)
        log_p, log_q = (x.logits - x.total[:, None] for x in (wanted, own))
        kl = summed_over(jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1), axes) * temperature**2
        both = (wanted.logits >= wanted.top[:, None]) & (own.logits >= own.top[:, None])
        same = summed_over(both.any(axis=-1).astype(jnp.float32), axes) > 0
        return jnp.where(weight == 0, 0.0, kl * weight).sum(), jnp.where(same, weight, 0.0).sum()

    head, beside = model.head.get_value(), teacher.head.get_value()
    rows = _flat(hidden), _flat(lax.stop_gradient(theirs)), weights.reshape(-1)
    return by_blocks(block, logits_nbytes // (4 * (head.shape[0] + beside.shape[0])), head, beside, *rows)


@dataclass(frozen=True, slots=True)
class Logits:
    """Of some positions.

    Attributes:
        logits: `[N, V]`, of the range of the vocabulary that lies here.
        axes: of the mesh, over which the vocabulary is divided.
        top, total: `[N]`, their largest and log Σ exp, over the whole vocabulary.
    """

    logits: Any
    axes: tuple[str, ...]
    top: Any
    total: Any

    @staticmethod
    def of(logits: Any, axes: tuple[str, ...]) -> "Logits":
        top = highest(lax.stop_gradient(logits.max(axis=-1)), axes)
        total = top + jnp.log(summed_over(jnp.exp(logits - top[:, None]).sum(axis=-1), axes))
        return Logits(logits, axes, top, total)

    def at(self, token: Any) -> Any:
        """`[N]`, the logits of `token` `[N]`."""
        here = token
        if self.axes:
            here = token - lax.axis_index(self.axes) * self.logits.shape[-1]
        mine = (here >= 0) & (here < self.logits.shape[-1])
        found = jnp.take_along_axis(self.logits, jnp.where(mine, here, 0)[:, None], axis=-1)[:, 0]
        return summed_over(jnp.where(mine, found, 0.0), self.axes)


def _flat(hidden: Any) -> Any:
    return hidden.reshape(-1, hidden.shape[-1])


def by_blocks(fn: Callable[..., Any], most: int, head: Any, fixed: Any, hidden: Any, *rows: Any) -> tuple[Any, Any]:
    """The sum over blocks of at most `most` rows of `fn(head, hidden, fixed, *rows)`: the loss, which has gradients by
    `head` and `hidden`, and something else, which has none.

    Args:
        head: an array, or any tree of them; what of it no gradient is asked for may be anything.
        fixed: what has no gradient.
        hidden, rows: arrays of as many rows.
    """
    axes = axes_of(head, fixed, hidden, rows)
    head, hidden = along(axes, (head, hidden))
    return _by_blocks((fn, max(1, most)), head, hidden, fixed, rows)  # type: ignore[no-any-return]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _by_blocks(how: tuple[Any, int], head: Any, hidden: Any, fixed: Any, rows: Any) -> Any:
    fn, most = how
    return _summed(lambda h, *some: (fn(head, h, fixed, *some), None), most, (hidden, *rows))[0]


def _forward(how: tuple[Any, int], *args: Any) -> tuple[Any, Any]:
    fn, most = how
    marked, tree = jax.tree.flatten(args[0], is_leaf=lambda leaf: hasattr(leaf, "perturbed"))
    asked = [leaf.perturbed for leaf in marked]
    head, hidden, fixed, rows = given(args)
    leaves = jax.tree.leaves(head)

    def gradients(h: Any, *some: Any) -> Any:
        def of(trained: list[Any], h: Any) -> Any:
            rest = iter(trained)
            whole = [next(rest) if flag else leaf for leaf, flag in zip(leaves, asked, strict=True)]
            return fn(jax.tree.unflatten(tree, whole), h, fixed, *some)

        loss, pull, seen = jax.vjp(
            of, [leaf for leaf, flag in zip(leaves, asked, strict=True) if flag], h, has_aux=True
        )
        d_head, d_hidden = pull(along(axes_of(loss), jnp.ones_like(loss)))
        return ((loss, seen), [d.astype(jnp.float32) for d in d_head]), d_hidden

    (found, totals), d_hidden = _summed(gradients, most, (hidden, *rows))
    rest = iter(totals)
    d_head = [next(rest).astype(leaf.dtype) if flag else None for leaf, flag in zip(leaves, asked, strict=True)]
    return found, (jax.tree.unflatten(tree, d_head), d_hidden)


def _backward(how: tuple[Any, int], kept: Any, cotangents: Any) -> tuple[Any, ...]:
    share = cotangent(cotangents[0])
    return *jax.tree.map(lambda d: (d * share).astype(d.dtype), kept), None, None


_by_blocks.defvjp(_forward, _backward, symbolic_zeros=True)


def _summed(fn: Callable[..., Any], most: int, rows: tuple[Any, ...]) -> tuple[Any, Any]:
    """`fn(*rows)`, which gives sums and what is of rows again, block by block."""
    many = rows[0].shape[0]
    count = -(-many // most)
    if count <= 1:
        return fn(*rows)  # type: ignore[no-any-return]
    size = -(-many // count)
    pad = count * size - many
    blocks = tuple(jnp.pad(a, [(0, pad), *[(0, 0)] * (a.ndim - 1)]).reshape(count, size, *a.shape[1:]) for a in rows)

    def add(so_far: Any, some: Any) -> Any:
        sums, kept = fn(*some)
        return jax.tree.map(jnp.add, so_far, sums), kept

    shapes, _ = jax.eval_shape(fn, *(a[0] for a in blocks))
    sums, kept = lax.scan(add, jax.tree.map(zeros, shapes), blocks)
    return sums, jax.tree.map(lambda a: a.reshape(count * size, *a.shape[2:])[:many], kept)

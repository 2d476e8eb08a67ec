"""What the gradients of the ops share: who asks for one, and who has none.

An op that decodes packed weights, or slices floats as integers, has its gradient written out (`jax.custom_vjp`): JAX's
own would be zero there without a word, as integers have no tangents. A packed tensor has no gradient. Its codes are
integers, and its scales alone are not what somebody means who differentiates with respect to a weight; so asking for
one is an error. Train what is added to packed weights (LoRA), or plain weights that are quantized on the way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from pipeline.errors import Unsupported
from pipeline.tensors.qtensor import QTensor


@jax.tree_util.register_static
@dataclass(frozen=True)
class Wanted:
    """Which arguments a gradient is asked for, in order; static, so that what nobody asked for is not computed."""

    flags: tuple[bool, ...]


def given(tree: Any) -> Any:
    """The values of what a forward rule with `symbolic_zeros=True` is handed."""
    return jax.tree.map(lambda leaf: leaf.value, tree, is_leaf=_is_primal)


def wanted(*trees: Any) -> Wanted:
    """Whether a gradient is asked for, of each argument of such a rule: an array, a QTensor, or None.

    Raises:
        Unsupported: it is asked for of a QTensor.
    """
    flags = tuple(any(leaf.perturbed for leaf in jax.tree.leaves(tree, is_leaf=_is_primal)) for tree in trees)
    for tree, flag in zip(trees, flags, strict=True):
        if flag and isinstance(tree, QTensor):
            raise Unsupported(
                f"a packed tensor ({tree.scheme.element}) has no gradient; differentiate with respect to plain weights"
            )
    return Wanted(flags)


def cotangent(dy: Any) -> Any:
    """What a backward rule is handed, as an array."""
    return jnp.zeros(dy.shape, dy.dtype) if isinstance(dy, SymbolicZero) else dy


def once(rule: Callable[..., Any]) -> Callable[..., Any]:
    """`rule(static, kept, dy)`, a backward rule, as one that refuses to be differentiated again.

    Some of what it calls is a constant to JAX, so a second derivative would be wrong and not missing.
    """
    guarded = partial(jax.custom_vjp, nondiff_argnums=(0,))(rule)
    guarded.defvjp(_refuse, _refuse)
    return guarded


def _refuse(*_: Any) -> Any:
    raise Unsupported("there is a first derivative only")


def _is_primal(leaf: Any) -> bool:
    return hasattr(leaf, "perturbed")

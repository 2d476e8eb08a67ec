"""What JAX's types say of values that differ from device to device, inside `jax.shard_map`; outside it, nothing.

Most of JAX works it out by itself. Two things want it said: the first value of a loop's carry, and what a call into C++
gives. Without it a check would have to be switched off that finds results which are wrong on all devices but one.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec


def axes_of(*values: Any) -> tuple[str, ...]:
    """The axes of the mesh along which one of these values, arrays or trees of them, may differ."""
    found = (jax.typeof(leaf).manual_axis_type.varying for leaf in jax.tree.leaves(values))
    return tuple(sorted(frozenset().union(*found)))


def along(axes: tuple[str, ...], value: Any) -> Any:
    """`value`, an array or a tree of them, typed as what may differ along `axes`. Nothing is computed."""

    def cast(leaf: Any) -> Any:
        missing = tuple(a for a in axes if a not in axes_of(leaf))
        return lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(cast, value)


def alike(*values: Any) -> tuple[Any, ...]:
    """All of these as what may differ wherever one of them may. An op whose gradient is written out takes its arguments
    so: then what JAX adds up for one that does not differ is added up outside of it."""
    return tuple(along(axes_of(values), values))


def zeros(like: Any) -> Any:
    """Zeros of a `jax.ShapeDtypeStruct`, typed as it is."""
    kind = like.manual_axis_type  # None outside shard_map
    return along(() if kind is None else tuple(sorted(kind.varying)), jnp.zeros(like.shape, like.dtype))


def typed(result: Any, axes: tuple[str, ...]) -> Any:
    """A `jax.ShapeDtypeStruct` of what may differ along `axes`."""
    if not axes:
        return result
    lies = NamedSharding(jax.sharding.get_abstract_mesh(), PartitionSpec())  # type: ignore[no-untyped-call]
    varies = jax.sharding.ManualAxisType(varying=frozenset(axes))  # type: ignore[no-untyped-call]
    return jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
        result.shape, result.dtype, sharding=lies, manual_axis_type=varies
    )

"""The places where devices speak to each other while a model runs on a mesh, inside one `jax.shard_map`.

There are five: weights are gathered where they are used (`gathered`), a product over a divided dimension is summed
(`summed`), rows of a divided embedding are found (`embedded`), logits of a divided vocabulary are put side by side
(`joined`), and what divided experts give is added up (`mixed`). Everything else that a model does is local.

Each is told by the layout of a parameter (`pipeline.mesh.Layout`, None where there is no mesh) over which axes of the
mesh it goes, and where that is none, it is the plain computation and nothing else. What comes out is equal on all
devices along those axes, and JAX's types say so (`check_vma`).

Every weight is gathered by itself. The small ones of a layer as one array take as long: 24 collectives and not 216, of
24 layers, took the same 12.2 ms of CPU on two devices of one CPU, and 24.3 instead of 23.8 on four.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax

from pipeline.mesh import Axes, Layout
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec
from plugins.mesh.components import layouts


@runtime_checkable
class Around(Protocol):
    """What a parameter holds that has the weight inside, as `base`, and with it what lies here as it is used."""

    base: Any

    def around(self, base: Any) -> Any:
        """The same of another weight."""
        ...


def over(layout: Layout | None, dim: int) -> Axes:
    """The axes of the mesh over which a parameter is divided along `dim` when it is computed with."""
    return () if layout is None else layout.used.axes[dim]


def gathered(w: Any, spec: TensorSpec, layout: Layout | None, rows: Axes = ()) -> Any:
    """A weight as the model computes with it, from the part of it that lies here; packed ones stay packed.

    Args:
        w: an array or a QTensor; or what has one inside.
        spec: of the whole weight.
        rows: axes along which devices compute different rows. Over these the gradient of `w` is a sum, of which every
            device gets its part at once; over others all devices have the whole of it already.
    """
    if layout is None or not any(layout.gathered):
        return w
    if isinstance(w, Around):
        return w.around(gathered(w.base, spec, layout, rows))
    parts = layouts(spec, layout)
    if not isinstance(w, QTensor):
        return _gathered(w, parts["values"], rows)
    found = {name: _gathered(array, parts[name], rows) for name, array in w.components.items()}
    return replace(w, **found)  # whatever comes with it


def _gathered(array: Any, layout: Layout, rows: Axes) -> Any:
    small = jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize < 4
    gather = _as_bits if small else _side_by_side
    for dim, axes in enumerate(layout.gathered):
        # Of several axes the first makes the coarsest parts: those of the last are put together first.
        for apart, some in groupby(reversed(axes), lambda axis: axis in rows):
            array = gather(array, tuple(reversed(list(some))), dim, apart)
    return array


def _side_by_side(array: Any, axes: Axes, dim: int, apart: bool = False) -> Any:
    """What all devices along `axes` have, one after the other along `dim`; the same everywhere.

    Args:
        apart: what is done with it differs from device to device.
    """
    return lax.all_gather(array, axes, axis=dim, tiled=True, to="varying" if apart else "invarying")


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _as_bits(array: Any, axes: Axes, dim: int, apart: bool) -> Any:
    """The same of floats of 16 or 8 bits, as integers: XLA's CPU backend gathers such floats as float32, and sends and
    keeps twice or four times the bytes."""
    bits = lax.bitcast_convert_type(array, jnp.dtype(f"uint{8 * array.dtype.itemsize}"))
    return lax.bitcast_convert_type(_side_by_side(bits, axes, dim, apart), array.dtype)


def _forward(array: Any, axes: Axes, dim: int, apart: bool) -> tuple[Any, None]:
    return _as_bits(array, axes, dim, apart), None


def _backward(axes: Axes, dim: int, apart: bool, kept: None, dy: Any) -> tuple[Any]:
    """What came from here; of `dy` that is the same everywhere a part, which holds the sum of all devices already."""
    if apart:
        wide = lax.psum_scatter(  # type: ignore[no-untyped-call]
            dy.astype(jnp.float32), axes, scatter_dimension=dim, tiled=True
        )
        return (wide.astype(dy.dtype),)
    n = dy.shape[dim] // lax.axis_size(axes)
    return (lax.dynamic_slice_in_dim(dy, lax.axis_index(axes) * n, n, dim),)


_as_bits.defvjp(_forward, _backward)


def summed(matmul: Callable[..., Any], x: Any, w: Any, bias: Any, axes: Axes) -> Any:
    """The op `matmul` with both `x` and `w` divided over `axes` along what is summed: float32 sums of all devices, the
    bias once, one rounding."""
    if not axes:
        return matmul(x, w, bias)
    y = _sum(matmul(x, w, out_dtype=jnp.float32), axes)
    if bias is not None:
        y = y + bias.astype(jnp.float32).reshape((1,) * (y.ndim - 1) + (-1,))
    return y.astype(x.dtype)


def _sum(array: Any, axes: Axes) -> Any:
    """What all devices along `axes` have, added up; the same everywhere."""
    return lax.psum(array, axes)  # type: ignore[no-untyped-call]


def summed_over(array: Any, axes: Axes) -> Any:
    """What all devices along `axes` have, added up."""
    return _sum(array, axes) if axes else array


def highest(array: Any, axes: Axes) -> Any:
    """The largest of what all devices along `axes` have; without a gradient."""
    return lax.pmax(array, axes) if axes else array  # type: ignore[no-untyped-call]


def embedded(embed: Callable[..., Any], ids: Any, w: Any, axes: Axes, *, dtype: Any) -> Any:
    """The op `embed` with the rows of `w` divided over `axes`: each device gives those that it has; sums are exact."""
    if not axes:
        return embed(ids, w, dtype=dtype)
    rows = w.shape[0]
    at = ids - lax.axis_index(axes) * rows
    mine = (at >= 0) & (at < rows)
    found = embed(jnp.where(mine, at, 0), w, dtype=dtype)
    return _sum(jnp.where(mine[..., None], found, 0), axes)


def joined(logits: Any, axes: Axes) -> Any:
    """Logits `[..., V]` of all devices, of which each has a range of the vocabulary."""
    return _side_by_side(logits, axes, logits.ndim - 1) if axes else logits


def mixed(
    moe: Callable[..., Any], x: Any, chosen: Any, weights: Any, w_in: Sequence[Any], b_in: Sequence[Any], w_out: Any,
    b_out: Any, *, activation: Callable[..., Any], layout: Layout | None,
) -> Any:  # fmt: skip
    """The op `moe` with the experts divided, or the inside of each one, or both.

    Every token is kept: a choice of an expert that lies elsewhere has weight 0 here, and is no choice then. The sums of
    all devices are float32, added up and rounded once.

    Args:
        layout: of `w_out`, `[E, D_out, F']`.
    """
    apart, inside = over(layout, 0), over(layout, 2)
    if not apart and not inside:
        return moe(x, chosen, weights, w_in, b_in, w_out, b_out, activation=activation)
    if apart:
        chosen = chosen - lax.axis_index(apart) * w_out.shape[0]
        mine = (chosen >= 0) & (chosen < w_out.shape[0])
        chosen, weights = jnp.where(mine, chosen, 0), jnp.where(mine, weights, 0.0)
    if inside and b_out is not None:
        b_out = jnp.where(lax.axis_index(inside) == 0, b_out, jnp.zeros_like(b_out))
    share = moe(x, chosen, weights, w_in, b_in, w_out, b_out, activation=activation, out_dtype=jnp.float32)
    return _sum(share, (*apart, *inside)).astype(x.dtype)

"""A model of shapes that is given its weights by name, and how these lie where there are several devices."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from pipeline.mesh import Layout
from pipeline.tensors.qtensor import QTensor
from plugins.engine.spread import Spread
from plugins.mesh.components import layouts
from plugins.models.common.decoder import Decoder

Leaves = Callable[[Mapping[str, Any], Mapping[str, Any], Any], Mapping[str, Any]]
"""(parameters, frozen, key of random numbers) → name → what the model's parameter of that name holds. `parameters` is
what is trained, `frozen` what is not; both are dicts by name, of whatever there is to hold."""


class Bound:
    """A model without weights: any `nnx.Module`, whose parameters are known by their metadata `names`, of several the
    first, or where there is none by their path in the module.

    Attributes:
        dtype: of activations.
        params: name → the parameter, of shapes.
    """

    def __init__(self, module: nnx.Module, spread: Spread | None = None, beside: Mapping[str, Layout] | None = None):
        """
        Args:
            beside: name → how it lies, of what is no parameter of the module.
        """
        self.dtype = jnp.dtype(getattr(module, "dtype", "float32"))
        self.spread, self._beside = spread, dict(beside or {})
        self._graph: Any
        self._rest: Any
        self._graph, params, self._rest = nnx.split(module, nnx.Param, ...)  # type: ignore[misc]
        self._flat = list(nnx.to_flat_state(params))
        self._names = [_name(path, param) for path, param in self._flat]
        self.params: dict[str, Any] = dict(zip(self._names, (param for _, param in self._flat), strict=True))

    def model(self, leaves: Mapping[str, Any], rows: tuple[str, ...] = ()) -> Any:
        """With `leaves`: name → what a parameter is to hold: an array, or whatever its op takes.

        Args:
            rows: axes of the mesh along which rows are divided.
        """
        flat = [
            (path, param.replace(leaves[name])) for name, (path, param) in zip(self._names, self._flat, strict=True)
        ]
        found = nnx.merge(self._graph, nnx.from_flat_state(flat), self._rest)
        if self.spread is not None and isinstance(found, Decoder):
            found.gather(rows)
        return found

    def put(self, module: nnx.Module, values: Mapping[str, Any]) -> None:
        """Have a module like that of which this was made hold `values`, in the dtypes that its parameters have."""
        pairs = zip(self._names, self._flat, strict=True)
        flat = [(path, param.replace(values[name].astype(param.get_value().dtype))) for name, (path, param) in pairs]
        nnx.update(module, nnx.from_flat_state(flat))

    def leaves(self, parameters: Mapping[str, Any], frozen: Mapping[str, Any], key: Any) -> dict[str, Any]:
        """What parameters hold where nothing is in between: matrices in the dtype of activations, the rest as it is."""
        return {name: self._computed(w) for name, w in {**frozen, **parameters}.items()}

    def _computed(self, w: Any) -> Any:
        wide = isinstance(w, jax.Array) and w.ndim > 1 and jnp.issubdtype(w.dtype, jnp.floating)
        return w.astype(self.dtype) if wide else w

    def specs(self, held: Mapping[str, Any]) -> dict[str, Any]:
        """How arrays or QTensors lie, by name: as the parameter does; of what is no parameter as it was said, or
        whole."""
        return {name: self._specs(name, value) for name, value in held.items()}

    def _specs(self, name: str, value: Any) -> Any:
        if name in self._beside:
            return _spec(self._beside[name].axes)
        param = self.params.get(name)
        layout = None if param is None else param.get_metadata().get("layout")
        if param is None or layout is None:
            return jax.tree.map(lambda _: P(), value)  # type: ignore[no-untyped-call]
        parts = {component: _spec(lies.axes) for component, lies in layouts(param.spec, layout).items()}
        return QTensor(scheme=value.scheme, **parts) if isinstance(value, QTensor) else parts["values"]

    def everywhere(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn(parameters, frozen, *rest)` on all devices, each of which gets its parts of the first two and all of the
        rest, and gives the same."""
        if (spread := self.spread) is None:
            return fn

        def run(parameters: Mapping[str, Any], frozen: Mapping[str, Any], *rest: Any) -> Any:
            whole = P()  # type: ignore[no-untyped-call]
            specs = (self.specs(parameters), self.specs(frozen), *(whole for _ in rest))
            return jax.shard_map(fn, mesh=spread.devices, in_specs=specs, out_specs=whole, check_vma=True)(
                dict(parameters), dict(frozen), *rest
            )

        return run

    def shardings(self, held: Mapping[str, Any]) -> Any:
        """The same as JAX wants it of arrays; None on one device."""
        if self.spread is None:
            return jax.tree.map(lambda _: None, held)
        devices = self.spread.devices
        return jax.tree.map(lambda s: NamedSharding(devices, s), self.specs(held), is_leaf=lambda s: isinstance(s, P))


def _spec(dims: tuple[tuple[str, ...], ...]) -> P:
    """As JAX says of results how they lie: without what is not divided at the end."""
    last = max((i for i, axes in enumerate(dims, 1) if axes), default=0)
    return P(*(axes or None for axes in dims[:last]))  # type: ignore[no-untyped-call]


def _name(path: tuple[Any, ...], param: Any) -> str:
    names = param.get_metadata().get("names")
    return names[0] if names else ".".join(map(str, path))

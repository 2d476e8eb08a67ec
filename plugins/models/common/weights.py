"""The weight table of a model, written where its parameters are: each says its name in the checkpoint.

A module's constructor asks `Weights` for every parameter by its Hugging Face name, shape and logical axes, and gets an
`nnx.Param` that holds shapes only. One declaration serves in both directions: loading fills the parameters by their
names (`plugins/engine/load.py`), and what a model holds can be written under them again. What the checkpoint has and
no module asked for is an error, unless `ignore` names it with the reason; so is what is missing or of another shape.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from flax import nnx

import pipeline.tensors.pytree  # noqa: F401 - QTensor as a pytree
from pipeline.errors import PlanError
from pipeline.mesh import Layout, Parameter
from pipeline.planning.fitting import misfits
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec, numpy_dtype
from plugins.mesh.collectives import gathered
from plugins.models.device import WeightsDtype, device_spec, left_out

Axes = tuple[str, ...]


def stacked(specs: Sequence[TensorSpec]) -> TensorSpec:
    """The spec of equal tensors stacked along a new first axis."""
    return replace(specs[0], shape=(len(specs), *specs[0].shape))


def abstract(spec: TensorSpec) -> Any:
    """Shapes and dtypes only: a `jax.ShapeDtypeStruct`, or a QTensor of them."""
    if spec.scheme is None:
        return _shape(spec.shape, spec.dtype)
    dtypes = spec.scheme.dtypes
    parts = {c: _shape(shape, dtypes[c]) for c, shape in spec.scheme.components(spec.shape).items()}
    return QTensor(parts["codes"], parts.get("scales"), spec.scheme, parts.get("zeros"), parts.get("second"))


def _shape(shape: tuple[int, ...], dtype: str) -> Any:
    return jax.ShapeDtypeStruct(shape, numpy_dtype(dtype))  # type: ignore[no-untyped-call]


def gather(*parts: nnx.Module | nnx.Param[Any], rows: tuple[str, ...] = ()) -> None:
    """Put together the weights of `parts` that lie divided and are used whole, for the rest of a trace: a second time
    there is nothing left to do.

    Args:
        rows: see `plugins.mesh.collectives.gathered`.
    """
    for part in parts:
        for _, param in nnx.iter_graph(part):
            if isinstance(param, nnx.Param) and param.layout is not None:
                param.set_value(gathered(param.get_value(), param.spec, param.layout, rows))
                param.set_metadata(layout=param.layout.used)


@dataclass
class _Record:
    specs: Mapping[str, TensorSpec]
    weights_dtype: WeightsDtype
    layouts: Mapping[str, Layout]
    asked: list[Parameter] = field(default_factory=list)
    ignored: dict[str, str] = field(default_factory=dict)


class Weights:
    """Hands out parameters by name, and keeps account.

    Each Param has the metadata `names` (the tensors it holds, several when they are stacked along a new first axis),
    `spec` (a `TensorSpec`: how all of it lies on a device), `axes` (a logical axis name for each dimension), and
    `layout` (how it lies over the devices of a mesh; None: on one).
    """

    def __init__(
        self,
        specs: Mapping[str, TensorSpec],
        weights_dtype: WeightsDtype = "keep",
        prefix: str = "",
        record: _Record | None = None,
        layouts: Mapping[str, Layout] | None = None,
    ):
        self._record = record or _Record(specs, weights_dtype, layouts or {})
        self.prefix = prefix

    def scope(self, prefix: str) -> "Weights":
        """The same table, with names under `prefix.`."""
        return Weights(self._record.specs, prefix=f"{self.prefix}{prefix}.", record=self._record)

    @property
    def count(self) -> int:
        """How many tensors the checkpoint has."""
        return len(self._record.specs)

    def has(self, name: str) -> bool:
        return self.prefix + name in self._record.specs

    def param(self, name: str, shape: tuple[int, ...], axes: Axes) -> nnx.Param[Any]:
        """The tensor `name`, logical `shape`."""
        return self._param((self.prefix + name,), shape, axes, stack=False)

    def stack(self, names: Sequence[str], shape: tuple[int, ...], axes: Axes) -> nnx.Param[Any]:
        """Tensors of one shape and encoding, as one of `shape`, whose first dimension counts them."""
        return self._param(tuple(self.prefix + n for n in names), shape, axes, stack=True)

    def _param(self, names: tuple[str, ...], shape: tuple[int, ...], axes: Axes, *, stack: bool) -> nnx.Param[Any]:
        if len(axes) != len(shape):
            raise TypeError(f"{names[0]}: {len(axes)} axes for shape {shape}")
        self._record.asked.append(Parameter(names, shape, axes, (1,) * len(shape), stack=stack))
        one = shape[1:] if stack else shape
        specs = [device_spec(self._found(name, one), self._record.weights_dtype) for name in names]
        spec = stacked(specs) if stack else specs[0]
        layout = self._record.layouts.get(names[0])
        return nnx.Param(abstract(spec), names=names, spec=spec, axes=axes, stack=stack, layout=layout)

    def _found(self, name: str, shape: tuple[int, ...]) -> TensorSpec:
        """Of a tensor that is asked for; where it is missing, or of another shape, something of that shape: `check`
        says so."""
        spec = self._record.specs.get(name)
        return spec if spec is not None and spec.shape == shape else TensorSpec(shape, "BF16")

    def ignore(self, patterns: Mapping[str, str]) -> None:
        """Tensors that a checkpoint may have and the model has no use for: pattern → reason."""
        self._record.ignored.update(patterns)

    def check(self, config: Mapping[str, Any]) -> Mapping[str, str]:
        """The tensors that were ignored, with the reasons.

        Args:
            config: config.json, for the names of its keys.

        Raises:
            PlanError: tensors missing, of a wrong shape or dtype, or left over; all of them at once.
        """
        record = self._record
        asked = {name for p in record.asked for name in p.names}
        ignored = left_out((name for name in record.specs if name not in asked), record.ignored)
        specs = {name: spec for name, spec in record.specs.items() if name not in ignored}
        held = {name: device_spec(spec, record.weights_dtype) for name, spec in specs.items()}
        if problems := list(misfits(record.asked, specs, config, held)):
            raise PlanError(problems, exit_code=4)
        return ignored

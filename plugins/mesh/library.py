"""Meshes for other people's modules, outside any pipeline: a parameter says what its dimensions count, and the rules of
a mesh say how it lies.

    self.up = nnx.Param(values, axes=("embed", "mlp"))

    lie = shardings(model, Mesh({"tensor": 4}, rules={"mlp": "tensor"}))
    nnx.update(model, jax.device_put(nnx.state(model, nnx.Param), lie))

What is jitted with such parameters runs on all devices: XLA puts in what they exchange.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import yaml
from flax import nnx

import pipeline
import pipeline.tensors.pytree
from pipeline.errors import PlanError, Problem, SourceError, did_you_mean
from pipeline.mesh import COMPUTED, ONLY_STORED, Mesh, Parameter
from pipeline.planning.layout import lay_out
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec
from plugins.mesh import place
from plugins.mesh.devices import arrange
from plugins.mesh.store import held_spec

CONF = Path(pipeline.__file__).parents[1] / "conf" / "mesh"
AXES = tuple(name for name in (*COMPUTED, *ONLY_STORED) if name != "batch")
"""What a dimension of a parameter can count."""


def shardings(module: nnx.Module, mesh: Mesh, devices: Sequence[Any] | None = None) -> Any:
    """How the parameters of a module lie over a mesh.

    Args:
        module: each `nnx.Param` of it holds an array of any number of dimensions, a QTensor, or the shapes of either
            (`nnx.eval_shape`), and has the metadata `axes`: what each of its dimensions counts, one of `vocab`,
            `heads`, `kv_heads`, `mlp`, `experts`, `embed`, `head`, `experts_out`; and where elements must not be cut
            apart, `units`: how many of each dimension belong together, such as a head's size where heads are flattened.
            Of a QTensor both are of its logical shape.
        mesh: its rules and what it stores divided. What is divided in either way lies so.
        devices: of JAX, in the order of the mesh; None: all there are.

    Returns:
        The tree of `nnx.state(module, nnx.Param)` with a `NamedSharding` for each array. Components of a QTensor
        (codes, scales, …) are cut alike, and no block is.

    Raises:
        PlanError: all that does not fit together. Of parameters that are not understood the rest is checked without
            them; their names are their paths in the module.
    """
    devices = jax.devices() if devices is None else devices
    state = nnx.state(module, nnx.Param)
    params = {".".join(map(str, path)): (path, param) for path, param in nnx.to_flat_state(state)}
    parameters: list[Parameter] = []
    specs: dict[str, TensorSpec] = {}
    problems: list[Problem] = []
    for name, (_, param) in params.items():
        try:
            spec = held_spec(param.get_value())
        except SourceError as why:
            problems.append(Problem(name, str(why)))
            continue
        given = param.get_metadata()
        axes, units = given.get("axes"), given.get("units", (1,) * len(spec.shape))
        if wrong := list(_wrong(spec.shape, axes, units)):
            problems += [Problem(name, said) for said in wrong]
        else:
            parameters.append(Parameter((name,), spec.shape, tuple(axes), tuple(units)))
            specs[name] = spec
    try:
        layouts = lay_out(mesh, parameters, specs, devices=len(devices))
    except PlanError as why:
        problems += why.problems
    if problems:
        raise PlanError(problems)
    where = arrange(mesh, devices)
    lie = {name: place.shardings(spec, layouts[name], where) for name, spec in specs.items()}
    return nnx.from_flat_state(
        (path, param.replace(_like(param.get_value(), lie[name]))) for name, (path, param) in params.items()
    )


def preset(kind: str, **axes: int) -> Mesh:
    """A mesh as `mesh=` names it in a pipeline: `preset("fsdp_tensor", fsdp=4)`.

    Args:
        kind: one of `data`, `expert`, `fsdp`, `fsdp_tensor`, `multihost`, `single`, `tensor`.
        axes: axis → devices along it, where it is to be another number than the option's.

    Returns:
        The mesh, of one process; `dataclasses.replace` gives it other rules.

    Raises:
        PlanError: no such kind, no such axis of it, or a number that cannot be.
    """
    kinds = sorted(path.stem for path in CONF.glob("*.yaml"))
    if kind not in kinds:
        raise PlanError([Problem("mesh", f"there is no {kind!r}{did_you_mean(kind, kinds)}")])
    option = yaml.safe_load((CONF / f"{kind}.yaml").read_text(encoding="utf-8"))
    if unknown := [name for name in axes if name not in option["axes"]]:
        said = f"mesh={kind} has no such axis{did_you_mean(unknown[0], option['axes'])}"
        raise PlanError([Problem(f"mesh.axes.{name}", said) for name in unknown])
    return Mesh({**option["axes"], **axes}, option["rules"], option["stored"], option["replicated_most"])


def _wrong(shape: tuple[int, ...], axes: Any, units: Any) -> Iterator[str]:
    """What is wrong with what one parameter says of its dimensions."""
    if axes is None and shape:
        said = f"of shape {shape} does not say what its dimensions count: nnx.Param(…, axes=…) does"
        yield f"{said}, with {len(shape)} of {', '.join(AXES)}"
        return
    axes = () if axes is None else axes
    if not isinstance(axes, tuple | list) or len(axes) != len(shape):
        yield f"axes {axes!r} and shape {shape}: one name for each dimension"
    else:
        for axis in (a for a in axes if a not in AXES):
            yield f"axes {axes!r}: {axis!r} is no logical axis of weights{did_you_mean(str(axis), AXES)}"
    known = isinstance(units, tuple | list) and all(isinstance(n, int) and n > 0 for n in units)
    if not known or len(units) != len(shape):
        yield f"units {units!r} and shape {shape}: a whole number from 1 for each dimension"


def _like(value: Any, lie: dict[str, Any]) -> Any:
    return QTensor(scheme=value.scheme, **lie) if isinstance(value, QTensor) else lie["values"]

"""From a mesh and a model's parameters to how every tensor lies, or to everything that stands in the way.

Needs config.json and the specs of tensors, and builds no model.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from pipeline.errors import PlanError, Problem, SourceError, some
from pipeline.mesh import COMPUTED, Axes, Layout, Mesh, Parameter, several
from pipeline.planning.fitting import misfits
from pipeline.tensors.blocks import block_grain
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec, group_of
from pipeline.units import show_bytes

MOST_LISTED = 5  # of the largest tensors that lie whole everywhere
MOST_SIZES = 12


def lay_out(
    mesh: Mesh,
    parameters: Sequence[Parameter],
    specs: Mapping[str, TensorSpec],
    *,
    devices: int | None = None,
    batch: Mapping[str, int] | None = None,
) -> dict[str, Layout]:
    """How every parameter of a model lies, by its name.

    Args:
        mesh: over which.
        parameters: of the model.
        specs: tensor → how it lies on a device (`plugins.models.device.device_spec`).
        devices: how many there are; None: not known yet.
        batch: setting → rows that go through the model at once.

    Raises:
        PlanError: all that does not fit together, by the settings that people type.
    """
    plan = _Plan(mesh)
    for parameter in parameters:
        spec = spec_of(parameter, specs)
        if spec is not None and spec.shape == parameter.shape:
            plan.place(parameter, spec)
    wrong = list(misfits(parameters, specs, {})) if len(plan.layouts) < len(parameters) else []
    plan.check(parameters, specs)
    known = [] if devices is None else device_problems(mesh, devices)
    if problems := [*wrong, *known, *plan.problems, *batch_problems(mesh, batch or {})]:
        raise PlanError(problems, exit_code=SourceError.exit_code if wrong else None)
    return plan.layouts


def spec_of(parameter: Parameter, specs: Mapping[str, TensorSpec]) -> TensorSpec | None:
    """Of the whole parameter, stacked where it is; None where a tensor is missing."""
    if any(name not in specs for name in parameter.names):
        return None
    one = specs[parameter.name]
    shape = (len(parameter.names), *one.shape) if parameter.stack else one.shape
    return TensorSpec(shape, one.dtype, one.scheme)


def largest_whole(
    parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec], layouts: Mapping[str, Layout]
) -> list[tuple[str, int]]:
    """Groups of tensors that lie whole on every device, and their bytes there; the largest first."""
    found: dict[str, int] = {}
    for parameter in parameters:
        if layouts[parameter.name].replicated:
            group, nbytes = group_of(parameter.name), sum(specs[name].nbytes for name in parameter.names)
            found[group] = found.get(group, 0) + nbytes
    return sorted(found.items(), key=lambda item: (-item[1], item[0]))


def device_problems(mesh: Mesh, devices: int) -> list[Problem]:
    """Where a mesh is not of as many devices as there are: never are some of them left over, or taken twice."""
    if mesh.size == devices:
        return []
    sizes = " × ".join(f"{axis} {size}" for axis, size in mesh.axes.items()) or "one device"
    said = f"{sizes} = {mesh.size} devices, and there are {devices}"
    return [Problem("mesh.axes", f"{said}; the product must be that number, and 1 takes an axis away")]


def divided_input(
    parameter: Parameter, layout: Layout, scheme: Scheme, ways: Callable[[Axes], int], *, known: bool = False
) -> str | None:
    """Why a device that has its part of what a weight is multiplied by cannot round that as `scheme` does: its scales
    are of other devices' parts as well. None: it can.

    Args:
        ways: how many parts axes of the mesh make together.
        known: the scale of all inputs, or the second-level one, was made before; those of blocks are not.
    """
    block = scheme.block_elems if known or scheme.second is None else 0
    if known and not block:
        return None
    return _cut_input(parameter, layout, block, ways, f"scales are of {f'blocks of {block}' if block else 'a row'}")


def divided_turn(parameter: Parameter, layout: Layout, block: int, ways: Callable[[Axes], int]) -> str | None:
    """The same of rotating blocks of so many inputs."""
    return _cut_input(parameter, layout, block, ways, f"blocks of {block} are rotated together")


def _cut_input(
    parameter: Parameter, layout: Layout, block: int, ways: Callable[[Axes], int], said: str
) -> str | None:  # fmt: skip
    """Why inputs cannot be divided, of which so many in a row belong together; 0: all of a row."""
    over = layout.used.axes[-1]
    here = parameter.shape[-1] // ways(over)
    if not over or (block and here % block == 0):
        return None
    text = f"its input is divided over {' and '.join(over)}, {here} on each device, and {said}"
    return f"{text}; mesh.stored divides weights and no inputs"


def batch_problems(mesh: Mesh, batch: Mapping[str, int]) -> list[Problem]:
    """For each setting whose rows do not divide over the axes of the batch."""
    over = mesh.over("batch")
    ways = mesh.ways(over)
    said = f"rows do not divide over {' and '.join(over)}, {ways} ways; multiples of {ways} do: {ways}, {2 * ways}, …"
    return [Problem(where, f"{rows} {said}") for where, rows in batch.items() if rows % ways]


class _Plan:
    """Layouts as they are made, and what was wrong."""

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self.layouts: dict[str, Layout] = {}
        self.problems: list[Problem] = []
        self.parts: dict[str, int] = {}  # logical axis → greatest common divisor of the parts that its dimensions have
        self.cut: dict[str, dict[str, str]] = {}  # logical axis → group of tensors that its rule cuts → its dimension
        self.twice: dict[tuple[str, str, str], str] = {}

    def note(self, where: str, message: str) -> None:
        self.problems.append(Problem(where, message))

    def place(self, parameter: Parameter, spec: TensorSpec) -> None:
        """One parameter."""
        grain = _grain(parameter, spec)
        computed = [self.mesh.over(axis) for axis in parameter.axes]
        for dim, axis in enumerate(parameter.axes):
            self._divides(parameter, dim, grain[dim])
            for before in range(dim):
                for shared in set(computed[before]) & set(computed[dim]):
                    self.twice.setdefault((parameter.axes[before], axis, shared), group_of(parameter.name))
        gathered = self._stored(parameter, grain, computed)
        axes = tuple((*c, *g) for c, g in zip(computed, gathered, strict=True))
        self.layouts[parameter.name] = Layout(parameter.shape, axes, tuple(gathered))

    def _divides(self, parameter: Parameter, dim: int, grain: int) -> None:
        """Keeps account of what a rule cuts, and of what it could cut into."""
        axis, n = parameter.axes[dim], parameter.shape[dim]
        parts = n // grain if n % grain == 0 else 1
        self.parts[axis] = math.gcd(self.parts.get(axis, 0), parts)
        if parts % self.mesh.ways(self.mesh.over(axis)):
            of = f"{n} in {parts} of {grain}" if n % grain == 0 else f"{n}, no multiple of {grain}"
            of = str(n) if grain == 1 else of
            self.cut.setdefault(axis, {}).setdefault(group_of(parameter.name), of)

    def _stored(self, parameter: Parameter, grain: tuple[int, ...], computed: Sequence[Axes]) -> list[Axes]:
        """The axes of the mesh that divide every dimension beyond what computing divides."""
        found: list[Axes] = [()] * len(computed)
        taken = {axis for over in computed for axis in over}
        for axis, alternatives in self.mesh.stored.items():
            if axis in taken or self.mesh.axes[axis] == 1:
                continue
            for dim in (d for name in alternatives for d, a in enumerate(parameter.axes) if a == name):
                over = (*computed[dim], *found[dim], axis)
                if parameter.shape[dim] % (self.mesh.ways(over) * grain[dim]) == 0:
                    found[dim] = (*found[dim], axis)
                    break
        return found

    def check(self, parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec]) -> None:
        """What is wrong with all of it together."""
        mesh = self.mesh
        has = {"batch", *(axis for p in parameters for axis in p.axes)}
        for logical in (name for name in mesh.rules if mesh.over(name) and name not in has):
            there = [name for name in COMPUTED if name in has]
            said = f"no tensor of this model has {logical!r}: nothing is divided over {', '.join(mesh.over(logical))}"
            self.note(f"mesh.rules.{logical}", f"{said} (allowed: {', '.join(there)}; null takes the rule away)")
        self._unused()
        for (one, other, axis), name in self.twice.items():
            said = f"{name} has {one} and {other}, and {axis} divides a tensor once"
            self.note(f"mesh.rules.{other}", f"{said}; give one of them another axis of the mesh, or null")
        for logical, names in self.cut.items():
            self._cuts(logical, names)
        self._whole(parameters, specs)

    def _unused(self) -> None:
        """Axes of the mesh that divide nothing."""
        mesh = self.mesh
        used = {axis for layout in self.layouts.values() for over in layout.axes for axis in over}
        ruled = {axis for over in mesh.rules.values() for axis in several(over)}
        for axis, size in mesh.axes.items():
            if size > 1 and axis not in used | ruled:
                tried = f": none of {', '.join(mesh.stored[axis])} divides" if axis in mesh.stored else ""
                said = f"{size} devices along it, and nothing is divided over it{tried}"
                self.note(f"mesh.axes.{axis}", f"{said}; name it in mesh.rules ({', '.join(COMPUTED)}), or make it 1")

    def _cuts(self, logical: str, names: Mapping[str, str]) -> None:
        over = self.mesh.over(logical)
        listed = some([f"{name} ({of})" for name, of in names.items()])
        said = f"{self.mesh.ways(over)} ways ({', '.join(over)}) would cut {listed}"
        said += f"; legal: {_divisors(self.parts[logical])}"
        beside = [name for name in self.parts if name != logical and self.mesh.over(name) == over]
        if (parts := math.gcd(*(self.parts[name] for name in (logical, *beside)))) != self.parts[logical]:
            *most, last = beside
            said += f"; with {' and '.join([', '.join(most), last] if most else [last])}: {_divisors(parts)}"
        self.note(f"mesh.rules.{logical}", said)

    def _whole(self, parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec]) -> None:
        """Too much that lies whole on every device."""
        known = [p for p in parameters if p.name in self.layouts]
        nbytes = sum(specs[name].nbytes for p in known for name in p.names)
        largest, most = largest_whole(known, specs, self.layouts), self.mesh.replicated_most
        whole = sum(n for _, n in largest)
        if self.mesh.size > 1 and whole > most * nbytes:
            listed = some([f"{name} {show_bytes(n)}" for name, n in largest], most=MOST_LISTED)
            said = (
                f"{100 * whole / nbytes:.3g} % of the weights' bytes lie whole on every device, and {100 * most:.3g} %"
            )
            first = next(p for p in known if self.layouts[p.name].replicated and group_of(p.name) == largest[0][0])
            said += f" may: {listed}; mesh.rules or mesh.stored can divide them{self._sizes(first, specs)}"
            self.note("mesh.replicated_most", said)

    def _sizes(self, parameter: Parameter, specs: Mapping[str, TensorSpec]) -> str:
        """In how many parts what is stored divided can divide a tensor that lies whole, for people."""
        spec = spec_of(parameter, specs)
        sides = zip(parameter.axes, parameter.shape, _grain(parameter, spec), strict=True) if spec is not None else ()
        parts = {axis: n // grain if n % grain == 0 else 1 for axis, n, grain in sides}
        said = ""
        for over, alternatives in self.mesh.stored.items():
            most = [parts[axis] for axis in alternatives if axis in parts]
            if sizes := sorted({n for part in most for n in range(2, part + 1) if part % n == 0}):
                said += f"; over {over} the first of them in {some(list(map(str, sizes)), most=MOST_SIZES)}"
        return said


def _grain(parameter: Parameter, spec: TensorSpec) -> tuple[int, ...]:
    """For each dimension, what its parts are multiples of: units of the model and blocks of the scheme, none cut."""
    return tuple(math.lcm(*sides) for sides in zip(parameter.units, block_grain(spec.scheme, spec.shape), strict=True))


def _divisors(parts: int) -> str:
    """The divisors of `parts`, for people."""
    return some([str(n) for n in range(1, parts + 1) if parts % n == 0], most=MOST_SIZES)

"""What a plan says of the devices that a model will lie on: what each has of every tensor, and what that weighs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import StorageError
from pipeline.mesh import PICTURE, Layout, Mesh, Parameter, Placement
from pipeline.planning.layout import largest_whole, spec_of
from pipeline.planning.mesh_costs import held_nbytes, weights_nbytes
from pipeline.planning.wiring import Plan
from pipeline.stage import Checkpoint, Footprint
from pipeline.tables import table
from pipeline.tensors.spec import TensorSpec, group_of
from pipeline.terminal import line
from pipeline.units import show_bytes

if TYPE_CHECKING:  # most runs have one device, of which nothing is drawn
    from pipeline.reporting.mesh_picture import Drawing

MOST_WHOLE = 8  # of the largest tensors that lie whole everywhere
MOST_DRAWN = 11  # tensors in a picture; with the mesh itself four rows of three
MOST_BLOCKS = 3  # tensors that are drawn on the console


def placements(plan: Plan) -> dict[str, Placement]:
    """Stage that lays a checkpoint out → over what and how."""
    found: dict[str, Placement] = {}
    for name, node in plan.nodes.items():
        if isinstance(node.result, Checkpoint) and (placement := node.result.placement) is not None:
            given = [plan.nodes[s].result for s in node.inputs.values()]
            if not any(isinstance(g, Checkpoint) and g.placement is placement for g in given):
                found[name] = placement
    return found


def show_mesh(mesh: Mesh) -> str:
    """`8 devices, fsdp 4 × tensor 2, in 2 processes of 4`."""
    axes = [f"{axis} {n}" for axis, n in mesh.axes.items() if n > 1]
    among = f", in {mesh.processes} processes of {mesh.size // mesh.processes}" if mesh.processes > 1 else ""
    return f"{mesh.size} devices, {' × '.join(axes)}{among}" if axes else "one device"


def mesh_tables(plan: Plan) -> list[Any]:
    """Of every stage that lays a checkpoint out over several devices, and of those that run models there."""
    found: list[Any] = []
    for placement in (p for p in placements(plan).values() if p.mesh.size > 1):
        groups = _groups(placement)
        found += [_layouts(placement.mesh, groups), *_whole(placement), _blocks(placement.mesh, groups)]
    takes = {name: t for name, t in plan.takes.items() if t.devices > 1}
    return [*found, *_reads(takes), *_each_device(takes), *_exchanged(takes)]


def draw_placements(plan: Plan, folder: Path) -> None:
    """The picture of the last of them, if it is over several devices.

    Raises:
        StorageError: it cannot be written.
    """
    found = [p for p in placements(plan).values() if p.mesh.size > 1]
    if not found:
        return
    from pipeline.reporting.mesh_picture import draw

    mesh = found[-1].mesh
    drawings = [_drawing(mesh, group) for group in _distinct(_groups(found[-1]))[:MOST_DRAWN]]
    try:
        draw(folder / PICTURE, show_mesh(mesh), mesh, drawings)
    except OSError as why:
        raise StorageError(f"{folder / PICTURE}: {why.strerror}") from None


@dataclass(frozen=True, slots=True)
class _Group:
    """Parameters that are alike in all layers.

    Attributes:
        name: with the number of the layer folded.
        one: the first of them, its layout, and the spec of all it holds.
    """

    name: str
    count: int
    one: Parameter
    layout: Layout
    spec: TensorSpec

    @property
    def nbytes(self) -> int:
        """Of all of them, whole."""
        return self.count * self.spec.nbytes

    def held(self, mesh: Mesh) -> int:
        """Bytes of all of them on each device."""
        return self.count * held_nbytes(mesh, self.layout, self.spec)


def _groups(placement: Placement) -> list[_Group]:
    found: dict[tuple[str, Layout, TensorSpec], list[Parameter]] = {}
    for parameter in placement.parameters:
        spec = spec_of(parameter, placement.specs)
        assert spec is not None  # or it would not have been laid out
        found.setdefault((group_of(parameter.name), placement.layouts[parameter.name], spec), []).append(parameter)
    return [_Group(name, len(alike), alike[0], layout, spec) for (name, layout, spec), alike in found.items()]


def _layouts(mesh: Mesh, groups: Sequence[_Group]) -> Any:
    rows = [
        (
            line(g.name), f"×{g.count}", divided(g.one, g.layout), "×".join(map(str, g.layout.local_shape(mesh))),
            show_bytes(g.held(mesh)),
        )
        for g in groups
    ]  # fmt: skip
    rows.append(("all weights", "", "", "", show_bytes(sum(g.held(mesh) for g in groups))))
    columns = ("tensors", "", "divided over, (gathered for use)", "each device", "bytes")
    return table(f"Weights on {show_mesh(mesh)}", columns, rows, right=(1, 4))


def divided(parameter: Parameter, layout: Layout) -> str:
    """`experts 8 / expert · mlp 448 · embed 160 / (data)`: each dimension, and the axes of the mesh that divide it."""
    parts = []
    for dim, (axis, size) in enumerate(zip(parameter.axes, parameter.shape, strict=True)):
        over = [f"({a})" if a in layout.gathered[dim] else a for a in layout.axes[dim]]
        parts.append(" / ".join([f"{axis} {size}", *over]))
    return " · ".join(parts)


def _whole(placement: Placement) -> list[Any]:
    """What lies whole on every device, the largest first."""
    found = largest_whole(placement.parameters, placement.specs, placement.layouts)
    if not found:
        return []
    rows = [(line(name), show_bytes(nbytes)) for name, nbytes in found[:MOST_WHOLE]]
    if rest := found[MOST_WHOLE:]:
        rows.append((f"{len(rest)} others", show_bytes(sum(nbytes for _, nbytes in rest))))
    whole = sum(nbytes for _, nbytes in found)
    each = weights_nbytes(placement.mesh, placement.parameters, placement.specs, placement.layouts)
    rows.append(("all of them", f"{show_bytes(whole)}, {100 * whole / max(1, each):.2g} % of what each has"))
    return [table("Whole on every device", ("tensors", "bytes"), rows, right=(1,))]


def _distinct(groups: Sequence[_Group]) -> list[_Group]:
    """Of the tensors that are divided alike the largest, largest first; what lies whole last."""
    found: dict[Any, _Group] = {}
    for group in sorted(groups, key=lambda g: -g.nbytes):
        layout = group.layout
        found.setdefault(None if layout.replicated else (layout.axes, layout.gathered), group)
    return sorted(found.values(), key=lambda g: g.layout.replicated)


def _drawing(mesh: Mesh, group: _Group) -> "Drawing":
    from pipeline.reporting.mesh_picture import Drawing

    gathered = sorted({a for over in group.layout.gathered for a in over})
    local = "×".join(map(str, group.layout.local_shape(mesh)))
    held = held_nbytes(mesh, group.layout, group.spec)
    below = [f"each device {local}, {show_bytes(held)} of {show_bytes(group.spec.nbytes)}"]
    below += [f"gathered over {' and '.join(gathered)} for use"] if gathered else []
    return Drawing(f"{line(group.name)} ×{group.count}", tuple(below), group.one.axes, group.layout)


def _blocks(mesh: Mesh, groups: Sequence[_Group]) -> Any:
    """Which device holds what, of a few tensors that are divided differently."""
    from pipeline.reporting.mesh_picture import blocks, sides

    rows = [
        ("\n".join([drawing.title, *drawing.below]), sides(drawing), blocks(mesh, drawing))
        for drawing in (_drawing(mesh, group) for group in _distinct(groups)[:MOST_BLOCKS])
    ]
    return table("Which device holds what", ("tensors", "", "blocks"), rows)


def _reads(takes: Mapping[str, Footprint]) -> list[str]:
    """What each host reads of the weights for its own devices."""
    found = []
    for name, t in takes.items():
        if not (each := t.host_reads):  # a stage of somebody's own, that does not say
            continue
        who = "the host reads" if len(each) == 1 else f"each of {len(each)} hosts reads"
        found.append(f"{name}: {who} {show_bytes(max(each))} of weights for its {t.devices // len(each)} devices")
    return found


def _each_device(takes: Mapping[str, Footprint]) -> list[Any]:
    """What every device has in it."""
    rows = []
    for name, t in takes.items():
        parts = (t.device_nbytes - t.cache_nbytes, t.cache_nbytes, t.temporary_nbytes)
        rows.append((name, *map(show_bytes, parts), show_bytes(sum(parts)), str(t.devices)))
    columns = ("stage", "weights", "KV cache", "temporaries, about", "all", "devices")
    return [table("On each device", columns, rows, right=range(1, 6))] if rows else []


def _exchanged(takes: Mapping[str, Footprint]) -> list[Any]:
    """What devices send each other."""
    rows = []
    for name, t in takes.items():
        for step in t.steps:
            said: list[tuple[str, str, int]] = [
                (e.place, f"{e.kind} over {' and '.join(e.axes)} ×{e.count}", e.nbytes)
                for e in sorted(step.exchanges, key=lambda e: -e.nbytes)
            ]
            said += [("all", "", sum(e.nbytes for e in step.exchanges))] if len(said) != 1 else []
            for place, how, nbytes in said:
                first = (
                    (name, f"{step.name}, {step.tokens} token{'s' * (step.tokens != 1)}")
                    if place == said[0][0]
                    else ("", "")
                )
                rows.append((*first, place, how, show_bytes(nbytes), show_bytes(-(-nbytes // step.tokens))))
    columns = ("stage", "step of a device", "place", "how", "it sends", "a token")
    return [table("Exchanged between devices", columns, rows, right=(4, 5))] if rows else []

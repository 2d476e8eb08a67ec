"""What a plan says of the devices that a model will lie on: what each has of every tensor, and what that weighs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import StorageError
from pipeline.mesh import Mesh
from pipeline.planning.placing import PICTURE, Placed, placed
from pipeline.planning.wiring import Plan
from pipeline.reporting.mesh_picture import Drawing, blocks, draw, sides
from pipeline.stage import Checkpoint, Placement
from pipeline.tensors.spec import group_of
from pipeline.terminal import line, table
from pipeline.units import show_bytes

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
    """`8 devices, fsdp 4 × tensor 2`."""
    axes = [f"{axis} {n}" for axis, n in mesh.axes.items() if n > 1]
    return f"{mesh.size} devices, {' × '.join(axes)}" if axes else "one device"


def mesh_tables(plan: Plan) -> list[Any]:
    """For every stage that lays a checkpoint out over several devices."""
    found: list[Any] = []
    for placement in (p for p in placements(plan).values() if p.mesh.size > 1):
        groups = _groups(placement)
        found += [_layouts(placement.mesh, groups), *_whole(groups), _blocks(placement.mesh, groups)]
    return found


def draw_placements(plan: Plan, folder: Path) -> None:
    """The picture of the last of them, if it is over several devices.

    Raises:
        StorageError: it cannot be written.
    """
    found = [p for p in placements(plan).values() if p.mesh.size > 1]
    if not found:
        return
    mesh = found[-1].mesh
    drawings = [_drawing(name, group) for name, group in _distinct(_groups(found[-1]))[:MOST_DRAWN]]
    try:
        draw(folder / PICTURE, show_mesh(mesh), mesh, drawings)
    except OSError as why:
        raise StorageError(f"{folder / PICTURE}: {why.strerror}") from None


Groups = Mapping[str, Sequence[Placed]]


def _groups(placement: Placement) -> Groups:
    """Parameters that are alike in all layers: name with the layers folded → each of them."""
    found: dict[tuple[Any, ...], list[Placed]] = {}
    for one in placed(placement):
        found.setdefault((group_of(one.parameter.name), one.layout, one.spec), []).append(one)
    named: dict[str, Sequence[Placed]] = {}
    for (name, *_), group in found.items():
        named[name if name not in named else group[0].parameter.name] = group
    return named


def _nbytes(group: Sequence[Placed]) -> int:
    """On each device."""
    return sum(p.local.nbytes for p in group)


def _layouts(mesh: Mesh, groups: Groups) -> Any:
    rows = [
        (line(name), f"×{len(g)}", divided(g[0]), "×".join(map(str, g[0].local.shape)), show_bytes(_nbytes(g)))
        for name, g in groups.items()
    ]
    rows.append(("all weights", "", "", "", show_bytes(sum(map(_nbytes, groups.values())))))
    title = f"Weights on {show_mesh(mesh)}"
    columns = ("tensors", "", "divided over, (gathered for use)", "each device", "bytes")
    return table(title, columns, rows, right=(1, 4), overflow="fold")


def divided(one: Placed) -> str:
    """`experts 8 / expert · mlp 448 · embed 160 / (data)`: each dimension, and the axes of the mesh that divide it."""
    parts = []
    for dim, (axis, size) in enumerate(zip(one.parameter.axes, one.spec.shape, strict=True)):
        over = [f"({a})" if a in one.layout.gathered[dim] else a for a in one.layout.axes[dim]]
        parts.append(" / ".join([f"{axis} {size}", *over]))
    return " · ".join(parts)


def _whole(groups: Groups) -> list[Any]:
    """What lies whole on every device, the largest first."""
    whole = {name: group for name, group in groups.items() if group[0].layout.replicated}
    if not whole:
        return []
    total, ours = (sum(map(_nbytes, g.values())) for g in (groups, whole))
    ordered = sorted(whole.items(), key=lambda item: -_nbytes(item[1]))
    rows = [(line(n), f"×{len(g)}", show_bytes(_nbytes(g))) for n, g in ordered[:MOST_WHOLE]]
    more = ordered[MOST_WHOLE:]
    rows += (
        [("others", f"×{sum(len(g) for _, g in more)}", show_bytes(sum(_nbytes(g) for _, g in more)))] if more else []
    )
    rows.append(("all of them", "", f"{show_bytes(ours)}, {100 * ours / max(1, total):.2g} % of what each has"))
    return [table("Whole on every device", ("tensors", "", "bytes"), rows, right=(1, 2))]


def _distinct(groups: Groups) -> list[tuple[str, Sequence[Placed]]]:
    """Of the tensors that are divided alike the largest, largest first; what lies whole last."""
    found: dict[Any, tuple[str, Sequence[Placed]]] = {}
    for name, group in sorted(groups.items(), key=lambda item: -sum(p.spec.nbytes for p in item[1])):
        layout = group[0].layout
        found.setdefault(None if layout.replicated else (layout.axes, layout.gathered), (name, group))
    return sorted(found.values(), key=lambda item: item[1][0].layout.replicated)


def _drawing(name: str, group: Sequence[Placed]) -> Drawing:
    one = group[0]
    gathered = sorted({a for over in one.layout.gathered for a in over})
    local = "×".join(map(str, one.local.shape))
    below = [f"each device {local}, {show_bytes(one.local.nbytes)} of {show_bytes(one.spec.nbytes)}"]
    below += [f"gathered over {' and '.join(gathered)} for use"] if gathered else []
    return Drawing(f"{line(name)} ×{len(group)}", tuple(below), one.parameter.axes, one.layout)


def _blocks(mesh: Mesh, groups: Groups) -> Any:
    """Which device holds what, of a few tensors that are divided differently."""
    shown = [_drawing(name, group) for name, group in _distinct(groups)[:MOST_BLOCKS]]
    drawn = table("Which device holds what", ("tensors", "", "blocks"), [])
    for drawing in shown:
        drawn.add_row("\n".join([drawing.title, *drawing.below]), sides(drawing), blocks(mesh, drawing))
    return drawn

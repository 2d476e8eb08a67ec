"""Which device holds what: tensors as people draw them, cut into the blocks of a layout, as a PNG and in characters."""

import colorsys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from pipeline.mesh import Layout, Mesh

Colour = tuple[float, float, float]

EVERYWHERE: Colour = (0.90, 0.90, 0.90)  # what all devices hold
ACROSS = 3  # pictures beside each other
MOST_LABELS = 16  # along a dimension; of more blocks not every one has one
MOST_CHARACTERS = 80  # of small labels beside each other
MOST_CELLS = 8  # along a dimension, on the console


@dataclass(frozen=True, slots=True)
class Drawing:
    """A tensor to draw.

    Attributes:
        title: above it.
        below: lines of text.
        axes: logical axis of each dimension.
        layout: how it lies.
    """

    title: str
    below: tuple[str, ...]
    axes: tuple[str, ...]
    layout: Layout


@dataclass(frozen=True, slots=True)
class Grid:
    """A layout in two dimensions: those that are divided, or the last ones.

    Attributes:
        rows, columns: the dimension; None: there is none.
        holders: of the block at (row, column), the devices.
    """

    rows: int | None
    columns: int | None
    holders: Mapping[tuple[int, int], tuple[int, ...]]

    @property
    def size(self) -> tuple[int, int]:
        """Blocks in (rows, columns)."""
        return max(r for r, _ in self.holders) + 1, max(c for _, c in self.holders) + 1


def drawn_dims(layout: Layout) -> tuple[int | None, int | None]:
    """The dimensions that are drawn downwards and across: those that are divided, and else the last; None: there is
    none. Of more than two divided dimensions the first two."""
    dims = len(layout.shape)
    divided = [d for d in range(dims) if layout.axes[d]][:2]
    others = [d for d in reversed(range(dims)) if d not in divided]
    shown = sorted([*divided, *others][:2])
    return (shown[0], shown[1]) if len(shown) == 2 else (None, shown[0] if shown else None)


def grid(mesh: Mesh, layout: Layout) -> Grid:
    """How the tensor is drawn. A block is what lies there of all dimensions that are not, on however many devices."""
    rows, columns = drawn_dims(layout)
    local = layout.local_shape(mesh)
    found: dict[tuple[int, int], list[int]] = {}
    for box, devices in layout.boxes(mesh):
        row, column = (box[d].start // local[d] if d is not None and local[d] else 0 for d in (rows, columns))
        found.setdefault((row, column), []).extend(devices)
    return Grid(rows, columns, {at: tuple(sorted(devices)) for at, devices in found.items()})


def shown_devices(devices: Sequence[int], all_: int) -> str:
    """`0–3`, `0 2 4 6`, `all`: devices as short as can be read."""
    if len(devices) == all_ > 1:
        return "all"
    runs: list[list[int]] = []
    for device in devices:
        if runs and device == runs[-1][1] + 1:
            runs[-1][1] = device
        else:
            runs.append([device, device])
    said = [f"{a}" if a == b else f"{a}–{b}" if b > a + 1 else f"{a} {b}" for a, b in runs]
    return " ".join(said if len(said) <= 4 else [*said[:2], "…", said[-1]])


def colours(mesh: Mesh) -> list[Colour]:
    """A colour for each device: hue by the first axis of the mesh, lightness by the others."""
    sizes = list(mesh.axes.values())
    first = sizes[0] if sizes else 1
    rest = mesh.size // first
    found = []
    for device in range(mesh.size):
        hue, step = divmod(device, rest)
        light = 0.60 if rest == 1 else 0.42 + 0.38 * step / (rest - 1)
        found.append(colorsys.hls_to_rgb(0.58 + hue / first * (0.92 if first > 2 else 1), light, 0.55))
    return found


def draw(path: Path, title: str, mesh: Mesh, drawings: Sequence[Drawing]) -> None:
    """The mesh, and each tensor in its blocks, coloured and numbered by the devices that hold them; a PNG at `path`."""
    from matplotlib.figure import Figure

    rows = ceil((1 + len(drawings)) / ACROSS)
    figure = Figure(figsize=(4.4 * min(ACROSS, 1 + len(drawings)), 3.5 * rows + 0.4), layout="constrained")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    places = iter(figure.subplots(rows, min(ACROSS, 1 + len(drawings)), squeeze=False).flat)
    _devices(next(places), mesh)
    palette = colours(mesh)
    for drawing, axes in zip(drawings, places, strict=False):
        _tensor(axes, mesh, drawing, palette)
    for axes in places:
        axes.set_axis_off()
    figure.savefig(path, dpi=150)


def _devices(axes: Any, mesh: Mesh) -> None:
    """The devices of the mesh by their coordinates, one square each."""
    sizes = list(mesh.axes.items()) or [("", 1)]
    across = sizes[-1][1] if len(sizes) > 1 else min(sizes[0][1], 8)
    holders = {divmod(d, across): (d,) for d in range(mesh.size)}
    _blocks(axes, Grid(0, 1, holders), mesh, colours(mesh))
    if len(sizes) > 1:
        axes.set_ylabel(" · ".join(f"{name} {n}" for name, n in sizes[:-1]), fontsize=8)
    legend = "\nhatched: on several devices; grey: on all" * (mesh.size > 1)
    axes.set_xlabel(f"{sizes[-1][0]} {sizes[-1][1]}{legend}", fontsize=8)
    axes.set_title("devices by their numbers", loc="left", fontsize=8)


def _tensor(axes: Any, mesh: Mesh, drawing: Drawing, palette: Sequence[Colour]) -> None:
    found = grid(mesh, drawing.layout)
    _blocks(axes, found, mesh, palette)
    shape = drawing.layout.shape
    label = ["" if d is None else f"{drawing.axes[d]} {shape[d]:,}" for d in (found.rows, found.columns)]
    axes.set_ylabel(label[0], fontsize=8)
    axes.set_xlabel("\n".join([label[1], *drawing.below]), fontsize=7.5)
    axes.set_title(drawing.title, loc="left", fontsize=8)


def _blocks(axes: Any, found: Grid, mesh: Mesh, palette: Sequence[Colour]) -> None:
    """Blocks of equal size: tensors are drawn by how they are divided, and not to scale."""
    from matplotlib.patches import Rectangle

    rows, columns = found.size
    thin = max(rows, columns) > MOST_LABELS
    text = {at: shown_devices(devices, mesh.size) for at, devices in found.holders.items()}
    down = ceil(rows / MOST_LABELS)
    across = ceil(columns * (2 + max(map(len, text.values()))) / MOST_CHARACTERS) if thin else 1
    for (row, column), devices in found.holders.items():
        fill = EVERYWHERE if len(devices) == mesh.size > 1 else palette[devices[0]]
        hatch = "///" if 1 < len(devices) < mesh.size else ""
        line = 0.3 if thin else 1.5
        axes.add_patch(Rectangle((column, row), 1, 1, facecolor=fill, edgecolor="white", linewidth=line, hatch=hatch))
        if row % down or column % across:
            continue
        said = text[row, column]
        size = 5.5 if thin else max(5.0, min(9.0, 300 / columns / max(2, len(said))))
        plate = thin or bool(hatch)  # else the text could not be read
        axes.text(
            column + 0.5, row + 0.5, said, ha="center", va="center", fontsize=size,
            color="white" if _dark(fill) and not plate else "#222222",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8} if plate else None,
        )  # fmt: skip
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def blocks(mesh: Mesh, drawing: Drawing) -> Any:
    """The same of one tensor for the console: a rich table with a cell for each block."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    found, palette = grid(mesh, drawing.layout), colours(mesh)
    drawn = Table(show_header=False, box=box.SQUARE)
    rows, columns = (_shortened(n) for n in found.size)
    for _ in columns:
        drawn.add_column(justify="center")
    for row in rows:
        cells = []
        for column in columns:
            if row is None or column is None:
                cells.append(Text("⋯"))
                continue
            devices = found.holders[row, column]
            fill = EVERYWHERE if len(devices) == mesh.size > 1 else palette[devices[0]]
            r, g, b = (round(255 * part) for part in fill)
            style = f"{'white' if _dark(fill) else 'black'} on rgb({r},{g},{b})"
            cells.append(Text(shown_devices(devices, mesh.size), style=style))
        drawn.add_row(*cells)
    return drawn


def sides(drawing: Drawing) -> str:
    """What is drawn downwards and what across."""
    found = drawn_dims(drawing.layout)
    return "\n".join(f"{drawing.axes[d]} {a}" for d, a in zip(found, "↓→", strict=True) if d is not None)


def _shortened(n: int) -> list[int | None]:
    """Blocks of a dimension on the console; None: those that are left out."""
    return [*range(n)] if n <= MOST_CELLS else [*range(MOST_CELLS - 2), None, n - 1]


def _dark(fill: Colour) -> bool:
    """Whether text on it had better be white."""
    return sum(weight * part for weight, part in zip((0.3, 0.59, 0.11), fill, strict=True)) < 0.55

"""How many bytes every process reads to fill the devices it has, known from specs and layouts alone."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from pipeline.mesh import Layout, Mesh, Parameter
from pipeline.tensors.blocks import Box, read_nbytes_of
from pipeline.tensors.regions import ends, portions
from pipeline.tensors.store import TensorStore


def bytes_read(
    store: TensorStore,
    mesh: Mesh,
    parameters: Iterable[Parameter],
    layouts: Mapping[str, Layout],
    processes: Sequence[Collection[int]],
) -> list[int]:
    """Bytes that come out of files when processes fill their devices: each distinct box once, replicas or not.

    What a store reads whole anyway counts whole: scales coded across a tensor, rows or matrices that a method must see,
    what a file holds interleaved. Gaps that a read of narrow columns skips over are not counted.

    Args:
        store: what is read.
        processes: of each its devices, as the mesh numbers them.
    """
    found = [0] * len(processes)
    alike: dict[Layout, list[tuple[Box, tuple[int, ...]]]] = {}  # layers are
    for parameter in parameters:
        layout = layouts[parameter.name]
        boxes = alike[layout] if layout in alike else alike.setdefault(layout, list(layout.boxes(mesh)))
        known: dict[tuple[tuple[tuple[int, int], ...], ...], int] = {}  # processes that hold the same read the same
        for i, devices in enumerate(processes):
            mine = [box for box, holders in boxes if any(device in devices for device in holders)]
            key = tuple(map(ends, mine))
            if key not in known:
                known[key] = _read(store, parameter, mine)
            found[i] += known[key]
    return found


def _read(store: TensorStore, parameter: Parameter, boxes: Sequence[Box]) -> int:
    """To fill boxes of one parameter."""
    taken: dict[str, list[Box]] = {}
    for portion in portions(store, parameter.names, parameter.shape, boxes, stack=parameter.stack):
        for read in portion.reads:
            taken.setdefault(read.name, []).append(read.box)
    return sum(read_nbytes_of(store, name, of) for name, of in taken.items())

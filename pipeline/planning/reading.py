"""How many bytes every process reads to fill the devices it has, known from specs and layouts alone."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from pipeline.mesh import Layout, Mesh, Parameter
from pipeline.tensors.blocks import Box, read_nbytes_of
from pipeline.tensors.regions import ends, grain_of_all, portions
from pipeline.tensors.store import TensorStore

Taken = dict[int, list[Box]]
"""Tensor of a parameter, by its number → boxes of it that are read."""


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
    alike: dict[tuple[Layout, bool, tuple[int, ...]], list[Taken]] = {}  # layers are
    for parameter in parameters:
        kind = layouts[parameter.name], parameter.stack, grain_of_all(store, parameter.names)
        if kind not in alike:
            alike[kind] = list(_taken(mesh, *kind, processes))
        known: dict[int, int] = {}  # what processes that hold the same read is worked out once
        for i, taken in enumerate(alike[kind]):
            if id(taken) not in known:
                known[id(taken)] = sum(read_nbytes_of(store, parameter.names[t], boxes) for t, boxes in taken.items())
            found[i] += known[id(taken)]
    return found


def _taken(
    mesh: Mesh, layout: Layout, stack: bool, grain: tuple[int, ...], processes: Sequence[Collection[int]]
) -> Iterator[Taken]:
    """What every process reads of a parameter; the same object for those that read the same."""
    boxes = list(layout.boxes(mesh))
    known: dict[tuple[tuple[tuple[int, int], ...], ...], Taken] = {}
    for devices in processes:
        mine = [box for box, holders in boxes if any(device in devices for device in holders)]
        key = tuple(map(ends, mine))
        if key not in known:
            known[key] = {}
            for portion in portions(layout.shape, mine, grain, stack=stack):
                for read in portion.reads:
                    known[key].setdefault(read.tensor, []).append(read.box)
        yield known[key]

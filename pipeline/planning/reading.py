"""How many bytes a process reads to fill the devices it has, known from specs and layouts alone."""

from collections.abc import Iterable, Mapping

from pipeline.mesh import Layout, Mesh, Parameter
from pipeline.tensors.blocks import Box, read_nbytes_of
from pipeline.tensors.regions import portions
from pipeline.tensors.store import TensorStore


def bytes_read(
    store: TensorStore,
    mesh: Mesh,
    parameters: Iterable[Parameter],
    layouts: Mapping[str, Layout],
    devices: Iterable[int] | None = None,
) -> int:
    """Bytes that come out of files when one process fills its devices: each distinct box once, replicas or not.

    What a store reads whole anyway (scales coded across a tensor, whole rows or matrices that a method must see, what a
    file holds interleaved) counts whole. Gaps that a read of narrow columns skips over are not counted.

    Args:
        store: what is read.
        devices: those of the process, as the mesh numbers them; None: all.
    """
    mine = set(range(mesh.size) if devices is None else devices)
    found = 0
    for parameter in parameters:
        boxes = [box for box, holders in layouts[parameter.name].boxes(mesh) if mine.intersection(holders)]
        taken: dict[str, list[Box]] = {}
        for portion in portions(store, parameter.names, parameter.shape, boxes, stack=parameter.stack):
            for read in portion.reads:
                taken.setdefault(read.name, []).append(read.box)
        found += sum(read_nbytes_of(store, name, of) for name, of in taken.items())
    return found

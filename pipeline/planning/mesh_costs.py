"""What a mesh takes, from layouts alone: bytes a device holds, and bytes that devices send each other.

What is counted is rings: of an all-gather over n devices each sends what it holds n - 1 times, and of a sum
(reduce-scatter, then all-gather) 2 (n - 1) / n of what is summed; less is not possible (Patarasuk and Yuan 2009,
doi:10.1016/j.jpdc.2008.09.002).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pipeline.mesh import Axes, Exchange, Kind, Layout, Mesh, Parameter, Place
from pipeline.planning.layout import spec_of
from pipeline.tensors.spec import TensorSpec

PARTIAL_NBYTES = 4  # partial sums and logits are fp32


def held_nbytes(mesh: Mesh, layout: Layout, spec: TensorSpec) -> int:
    """Bytes of a tensor's part on one device, codes and scales: all parts are equal.

    Args:
        spec: of the whole tensor.
    """
    return replace(spec, shape=layout.local_shape(mesh)).nbytes


def weights_nbytes(
    mesh: Mesh, parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec], layouts: Mapping[str, Layout]
) -> int:
    """Bytes of the weights on each device.

    Args:
        specs: tensor → how it lies on a device.
    """
    return sum(held_nbytes(mesh, layouts[p.name], spec) for p, spec in _specs(parameters, specs))


def exchanges(
    mesh: Mesh,
    parameters: Sequence[Parameter],
    specs: Mapping[str, TensorSpec],
    layouts: Mapping[str, Layout],
    *,
    tokens: int,
    predicted: int,
    activation_nbytes: int,
) -> list[Exchange]:
    """What devices send each other in one step of a model.

    Args:
        specs: tensor → how it lies on a device.
        tokens: that go through the model on one device: its rows, times their tokens.
        predicted: those of them whose logits are computed.
        activation_nbytes: of a number between layers.

    Returns:
        One entry for each place, kind and axes; none for what is not divided.
    """
    found: dict[tuple[Place, Kind, Axes], list[int]] = {}
    for place, kind, axes, nbytes in _each(
        mesh, list(_specs(parameters, specs)), layouts, tokens, predicted, activation_nbytes
    ):
        if axes:
            found.setdefault((place, kind, axes), []).append(nbytes)
    return [Exchange(*key, len(sent), sum(sent)) for key, sent in found.items()]


def _each(
    mesh: Mesh,
    parameters: Sequence[tuple[Parameter, TensorSpec]],
    layouts: Mapping[str, Layout],
    tokens: int,
    predicted: int,
    activation_nbytes: int,
) -> Iterator[tuple[Place, Kind, Axes, int]]:
    """Every collective: place, kind, axes, and bytes that a device sends."""
    vocab = [p for p, _ in parameters if p.axes == ("vocab", "embed")]  # the embedding, and a head of its own
    for parameter, spec in parameters:
        layout = layouts[parameter.name]
        gathered = tuple(axis for over in layout.gathered for axis in over)
        sent = held_nbytes(mesh, layout.used, spec) - held_nbytes(mesh, layout, spec)
        yield "gather", "all_gather", gathered, sent
        if parameter.axes in (("embed", "heads"), ("embed", "mlp")):
            axes = mesh.over(parameter.axes[1])
            yield "sum", "psum", axes, summed(mesh, axes, tokens * parameter.shape[0] * PARTIAL_NBYTES)
        if parameter.axes == ("experts", "embed", "mlp"):
            axes = (*mesh.over("experts"), *mesh.over("mlp"))
            yield "experts", "psum", axes, summed(mesh, axes, tokens * parameter.shape[1] * PARTIAL_NBYTES)
        if vocab and parameter is vocab[0]:
            axes = mesh.over("vocab")
            yield "embedding", "psum", axes, summed(mesh, axes, tokens * parameter.shape[1] * activation_nbytes)
        if vocab and parameter is vocab[-1]:
            axes = mesh.over("vocab")
            own = predicted * parameter.shape[0] * PARTIAL_NBYTES // mesh.ways(axes)
            yield "logits", "all_gather", axes, own * (mesh.ways(axes) - 1)


def summed(mesh: Mesh, axes: Axes, nbytes: int) -> int:
    """Bytes that a device sends where all along `axes` add up `nbytes`."""
    ways = mesh.ways(axes)
    return -(-2 * (ways - 1) * nbytes // ways)


def _specs(parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec]) -> Iterator[tuple[Parameter, TensorSpec]]:
    """Every parameter with the spec of all it holds.

    Raises:
        KeyError: a tensor is missing; `lay_out` says so.
    """
    for parameter in parameters:
        spec = spec_of(parameter, specs)
        if spec is None:
            raise KeyError(parameter.name)
        yield parameter, spec

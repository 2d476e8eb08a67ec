"""What a placement comes to: bytes on each device."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pipeline.mesh import Layout, Parameter
from pipeline.planning.layout import spec_of
from pipeline.stage import Placement
from pipeline.tensors.spec import TensorSpec

PICTURE = "mesh.png"  # in the folder of a run


@dataclass(frozen=True, slots=True)
class Placed:
    """A parameter where it lies.

    Attributes:
        spec: of the whole.
        local: of the part that one device has; all parts are equal.
    """

    parameter: Parameter
    layout: Layout
    spec: TensorSpec
    local: TensorSpec


def placed(placement: Placement) -> Iterator[Placed]:
    """Every parameter of a model, in order."""
    for parameter in placement.parameters:
        layout, spec = placement.layouts[parameter.name], spec_of(parameter, placement.specs)
        assert spec is not None  # or it would not have been laid out
        yield Placed(parameter, layout, spec, replace(spec, shape=layout.local_shape(placement.mesh)))


def nbytes_on_each(placement: Placement) -> int:
    """Bytes of weights that lie on each device."""
    return sum(p.local.nbytes for p in placed(placement))

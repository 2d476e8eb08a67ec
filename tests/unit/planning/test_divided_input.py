"""Inputs that lie on several devices are rounded there only where no scale is of more than one device's part."""

from dataclasses import replace

import pytest

from pipeline.mesh import Axes, Layout, Mesh, Parameter
from pipeline.planning.layout import divided_input
from pipeline.tensors.scheme import MXFP4, Scheme

MESH = Mesh({"fsdp": 2, "tensor": 3}, {"mlp": "tensor"}, {"fsdp": ("mlp",)})
DOWN = Parameter(("down_proj.weight",), (64, 288), ("embed", "mlp"), (1, 1))
NVFP4, A_ROW = Scheme("e2m1", 16, "e4m3", second="f32"), Scheme("int8", 0, "f32")


def lies(over: Axes, gathered: Axes = ()) -> Layout:
    return Layout(DOWN.shape, ((), over), ((), gathered))


@pytest.mark.parametrize("scheme", [MXFP4, NVFP4, A_ROW])
def test_what_is_whole_where_it_is_used_is_rounded_there(scheme: Scheme) -> None:
    assert divided_input(DOWN, lies(()), scheme, MESH.ways) is None
    assert divided_input(DOWN, lies(("fsdp",), ("fsdp",)), scheme, MESH.ways) is None


def test_whole_blocks_are() -> None:
    assert divided_input(DOWN, lies(("tensor",)), MXFP4, MESH.ways) is None  # 96 on each


@pytest.mark.parametrize(
    ("scheme", "said"), [(replace(MXFP4, block_elems=64), "blocks of 64"), (NVFP4, "a row"), (A_ROW, "a row")]
)
def test_scales_of_several_parts_are_refused(scheme: Scheme, said: str) -> None:
    """The second scale of NVFP4 is of a row, whatever its blocks."""
    why = divided_input(DOWN, lies(("tensor",)), scheme, MESH.ways)
    assert why is not None
    assert f"divided over tensor, 96 on each device, and scales are of {said}; mesh.stored" in why

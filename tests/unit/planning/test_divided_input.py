"""Inputs that lie on several devices are rounded there only where no scale is of more than one device's part."""

from dataclasses import replace

import pytest

from pipeline.mesh import Axes, Layout, Mesh, Parameter
from pipeline.planning.layout import divided_input, divided_turn
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


def test_known_scales_leave_blocks_alone_to_be_whole() -> None:
    """What is over all of a row was made before; blocks of NVFP4 have theirs when they are seen."""
    lie = lies(("tensor",))
    assert divided_input(DOWN, lie, A_ROW, MESH.ways, known=True) is None
    assert divided_input(DOWN, lie, NVFP4, MESH.ways, known=True) is None
    why = divided_input(DOWN, lie, replace(NVFP4, block_elems=64), MESH.ways, known=True)
    assert why is not None
    assert "96 on each device, and scales are of blocks of 64; mesh.stored" in why


def test_blocks_that_are_rotated_are_whole() -> None:
    assert divided_turn(DOWN, lies(()), 64, MESH.ways) is None
    assert divided_turn(DOWN, lies(("tensor",)), 32, MESH.ways) is None
    why = divided_turn(DOWN, lies(("tensor",)), 64, MESH.ways)
    assert why is not None
    assert "divided over tensor, 96 on each device, and blocks of 64 are rotated together; mesh.stored" in why

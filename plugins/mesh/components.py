"""How the components of a packed tensor lie where it lies: codes, scales and the rest are cut alike."""

from dataclasses import replace

from pipeline.mesh import Layout
from pipeline.tensors.spec import TensorSpec


def layouts(spec: TensorSpec, layout: Layout) -> dict[str, Layout]:
    """Component → its layout; `values` of a plain tensor.

    What a whole dimension shares, such as the one scale of a row, lies on every device along that dimension.

    Args:
        spec: of the whole tensor, as it lies on devices.
        layout: of the tensor, which cuts no block.
    """
    if spec.scheme is None:
        return {"values": layout}
    return {name: _shared(layout, shape) for name, shape in spec.scheme.components(spec.shape).items()}


def _shared(layout: Layout, shape: tuple[int, ...]) -> Layout:
    if len(shape) != len(layout.shape):
        raise AssertionError(f"a component of shape {shape} of a tensor of shape {layout.shape}")

    def kept(axes: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        return tuple(over if n > 1 else () for over, n in zip(axes, shape, strict=True))

    return replace(layout, shape=shape, axes=kept(layout.axes), gathered=kept(layout.gathered))

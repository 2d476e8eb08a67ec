"""Blocks under one scale as kernels that make and decode codes lay them out: values beside the bytes of their codes.

The least number of codes that fills bytes is a group: two of 4 bits in a byte, four of 6 bits in three, one of 8. The
first values of all groups are one plane, the second another, and so are bytes: so codes are packed and taken apart
without moving anything across a register. GPUs read and write blocks as they lie, `[blocks, ·]`, as many bytes at once
as a thread may, and take planes apart in registers; TPUs, whose registers have lanes of their own, want `[·, groups,
blocks]`, a copy, and blocks beside each other.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from plugins.kernels.pallas.blocks import divisor, padded, power
from plugins.kernels.pallas.launch import Device

ELEMS = 4096  # values that a point of the grid has, at least where there are so many


@dataclass(frozen=True)
class Groups:
    """Of arrays of values in blocks of `block` along rows, whose codes have `bits`.

    Attributes:
        blocks: how many there are.
    """

    device: Device
    bits: int
    block: int
    blocks: int

    @staticmethod
    def of(device: Device, shape: tuple[int, ...], bits: int, block: int) -> "Groups":
        """Of values of this shape."""
        return Groups(device, bits, block, prod(shape) // block)

    @property
    def values(self) -> int:
        """Of a group."""
        return 8 // self.nbits

    @property
    def nbits(self) -> int:
        """Bits by which codes and bytes are cut alike: 4, 2 (of 6) or 8."""
        return divisor(self.bits, 8)

    @property
    def nbytes(self) -> int:
        """Of a group's codes."""
        return self.bits // self.nbits

    @property
    def rows(self) -> int:
        """Blocks that a point of the grid has."""
        return max(self.device.lanes, min(power(self.blocks), ELEMS // self.block))

    @property
    def grid(self) -> tuple[int]:
        return (-(-self.blocks // self.rows),)

    @property
    def over(self) -> int:
        """The axis, of a plane in a kernel, along which a block lies."""
        return 0 if self.device.overhangs else 1

    def laid(self, array: Any, each: int) -> Any:
        """`array` as kernels take it, `each` planes of groups; of scales, one a block, `each` is 0."""
        if not self.device.overhangs:
            return padded(array.reshape(self.blocks, *self.shape(each)[1:]), {0: self.rows})
        apart = array.reshape(self.blocks, -1, max(1, each)) if each else array.reshape(self.blocks, 1)
        apart = padded(apart, {0: self.rows})
        return jnp.moveaxis(apart, 0, -1) if each == 0 else jnp.transpose(apart, (2, 1, 0))

    def shape(self, each: int) -> tuple[int, ...]:
        """That of an array as `laid` gives it."""
        count, groups = self.grid[0] * self.rows, self.block // self.values
        if self.device.overhangs:
            return (each, groups, count) if each else (1, count)
        if each & (each - 1):
            return (count, groups, each)
        return (count, groups * each) if each else (count, 1)

    def flat(self, array: Any, shape: tuple[int, ...]) -> Any:
        """What was `laid` out, as `shape`."""
        if self.device.overhangs:
            array = jnp.transpose(array, tuple(range(array.ndim))[::-1])
        return array[: self.blocks].reshape(shape)

    def spec(self, each: int) -> Any:
        """What a point of the grid has of such an array."""
        first = (self.rows, *self.shape(each)[1:])
        if not self.device.overhangs:
            return pl.BlockSpec(first, lambda i: (i, *(0,) * (len(first) - 1)))
        last = (*self.shape(each)[:-1], self.rows)
        return pl.BlockSpec(last, lambda i: (*(0,) * (len(last) - 1), i))

    def read(self, ref: Any, each: int) -> list[Any]:
        """The planes, `each` of them, of a block of an array."""
        if self.device.overhangs:
            return [ref[plane, :, :] for plane in range(each)]
        if each & (each - 1):  # which no register holds as it lies
            return [ref[:, :, plane] for plane in range(each)]
        return _apart(ref[...], each)

    def write(self, ref: Any, planes: list[Any]) -> None:
        """Makes `planes` a block of an array."""
        planes = [plane.astype(ref.dtype) for plane in planes]
        if self.device.overhangs:
            for k, plane in enumerate(planes):
                ref[k, :, :] = plane
        elif len(planes) & (len(planes) - 1):
            for k, plane in enumerate(planes):
                ref[:, :, k] = plane
        else:
            ref[...] = _woven(planes)

    def packed(self, codes: list[Any]) -> list[Any]:
        """int32 planes of bytes, of int32 planes of codes."""
        word = codes[0]
        for k, code in enumerate(codes[1:], 1):
            word = word | code << k * self.bits
        return [word >> 8 * k & 0xFF for k in range(self.nbytes)]

    def taken_apart(self, octets: list[Any]) -> list[Any]:
        """int32 planes of codes, of int32 planes of bytes."""
        word = octets[0]
        for k, octet in enumerate(octets[1:], 1):
            word = word | octet << 8 * k
        return [word >> k * self.bits & (1 << self.bits) - 1 for k in range(self.values)]


def _apart(array: Any, count: int) -> list[Any]:
    """`[rows, n]` of every `count`th element of `[rows, n · count]`, a power of two, from the first on and so forth."""
    if count == 1:
        return [array]
    rows, n = array.shape
    halves = (
        _apart(half.reshape(rows, n // 2), count // 2) for half in lax.split(array.reshape(rows, n // 2, 2), (1, 1), 2)
    )
    return [plane for pair in zip(*halves, strict=True) for plane in pair]


def _woven(planes: list[Any]) -> Any:
    """What `_apart` takes apart."""
    if len(planes) == 1:
        return planes[0]
    rows, n = planes[0].shape
    halves = [_woven(planes[k::2])[:, :, None] for k in (0, 1)]
    return jnp.concatenate(halves, axis=2).reshape(rows, n * len(planes))

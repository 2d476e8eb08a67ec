"""Byte orders that several quantized dialects share: reinterpreted bytes, 32-bit words, swapped nibbles, flat scales.

In memory codes are a little-endian bit stream, `int…` two's complement and `uint…` unsigned (see `Scheme`). Files
differ in dtype, in how an integer's sign is spelled (offset binary is two's complement with the top bit turned over),
in the nibble that comes first, and in shape. Nothing here changes a value. Boxes are of matrices, `Vector`'s aside:
leading dimensions are picked off by an `Index` before a packing sees them.
"""

from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from pipeline.tensors.spec import numpy_dtype
from pipeline.tensors.steps import Box, Grain

WORD_NBYTES = 4


@dataclass(frozen=True, slots=True)
class Bytes:
    """The same bytes under another dtype of one byte: uint8 codes [out, n] ↔ F8_E4M3 or I8 [out, n].

    Attributes:
        dtype: of the leaf.
        flip: bits turned over on the way: 0x80 between unsigned and two's complement of the same order.
    """

    dtype: str
    flip: int = 0

    def box(self, box: Box) -> Box:
        return box

    def pack(self, value: Any) -> Any:
        return self._flipped(np.asarray(value)).view(numpy_dtype(self.dtype))

    def unpack(self, array: Any) -> Any:
        return self._flipped(array.view(np.uint8))

    def grain(self, inner: Grain) -> Grain:
        return inner

    def _flipped(self, array: Any) -> Any:
        return array ^ np.uint8(self.flip) if self.flip else array


@dataclass(frozen=True, slots=True)
class Words:
    """Codes as 32-bit words: uint8 [out, nbytes] ↔ I32 [out, ceil(nbytes / 4)], the last word filled up with zero bits.

    The words of compressed-tensors' `pack_to_int32`: element i of a row begins at bit i · bits of the row's stream.

    Attributes:
        bits: of one element.
        nbytes: of a whole row of codes.
        signed: elements are two's complement in memory, offset binary in the leaf.
    """

    bits: int
    nbytes: int
    signed: bool
    dtype: str = "I32"

    def grain(self, inner: Grain) -> Grain:
        """Bytes of whole words and whole elements; all of a row where rows do not fill words."""
        return inner[0], self.nbytes if self.nbytes % WORD_NBYTES else WORD_NBYTES * (self.bits // gcd(self.bits, 32))

    def box(self, box: Box) -> Box:
        """
        Raises:
            IndexError: the columns cut a word, or rows do not fill whole words and the box is not of whole rows.
        """
        rows, last = box
        unit = WORD_NBYTES * (self.bits // gcd(self.bits, 32))  # whole words of whole elements
        whole = last == slice(0, self.nbytes)
        if not whole and (self.nbytes % WORD_NBYTES or last.start % unit or last.stop % WORD_NBYTES):
            raise IndexError(f"bytes {last.start}:{last.stop} of {self.nbytes} cut a 32-bit word")
        return rows, slice(last.start // WORD_NBYTES, -(-last.stop // WORD_NBYTES))

    def pack(self, value: Any) -> Any:
        codes = offset_binary(value, self.bits) if self.signed else np.ascontiguousarray(value)
        spare = -codes.shape[1] % WORD_NBYTES
        return (np.pad(codes, ((0, 0), (0, spare))) if spare else codes).view("<i4")

    def unpack(self, array: Any) -> Any:
        codes = np.ascontiguousarray(array).view(np.uint8)
        if self.nbytes % WORD_NBYTES:
            codes = np.ascontiguousarray(codes[:, : self.nbytes])
        return offset_binary(codes, self.bits) if self.signed else codes


@dataclass(frozen=True, slots=True)
class WordsDown:
    """Zero points as 32-bit words down the rows: uint8 [out, blocks] ↔ I32 [ceil(out · bits / 32), blocks].

    `pack_to_int32(…, packed_dim=0)` of compressed-tensors: row i of a column begins at bit i · bits of its stream.
    """

    bits: int
    rows: int
    dtype: str = "I32"

    def grain(self, inner: Grain) -> Grain:
        """Rows that fill whole words, if those fill the column; else all rows."""
        unit = 32 // gcd(self.bits, 32)
        return unit if self.rows % unit == 0 else self.rows, inner[1]

    def box(self, box: Box) -> Box:
        """
        Raises:
            IndexError: the rows cut a word.
        """
        rows, last = box
        whole, _ = self.grain((1, 1))
        if rows.start % whole or rows.stop % whole:
            raise IndexError(f"rows {rows.start}:{rows.stop} of {self.rows} cut a 32-bit word of zero points")
        return slice(rows.start * self.bits // 32, -(-rows.stop * self.bits // 32)), last

    def pack(self, value: Any) -> Any:
        zeros = np.ascontiguousarray(value.T)  # [blocks, rows]
        bits = np.unpackbits(zeros[:, :, None], axis=-1, count=self.bits, bitorder="little").reshape(len(zeros), -1)
        bits = np.pad(bits, ((0, 0), (0, -bits.shape[1] % 32)))
        return np.ascontiguousarray(np.packbits(bits, axis=-1, bitorder="little").view("<i4").T)

    def unpack(self, array: Any) -> Any:
        stream = np.ascontiguousarray(array.T).view(np.uint8)  # [blocks, bytes]
        rows = min(self.rows, stream.shape[1] * 8 // self.bits)
        bits = np.unpackbits(stream, axis=-1, bitorder="little")[:, : rows * self.bits]
        zeros = np.packbits(bits.reshape(len(stream), rows, self.bits), axis=-1, bitorder="little")[..., 0]
        return np.ascontiguousarray(zeros.T)


@dataclass(frozen=True, slots=True)
class Single:
    """One scale for a whole matrix: [1, 1] ↔ a leaf of shape [1] or []."""

    dtype: str
    dims: int

    def box(self, box: Box) -> Box:
        return (slice(0, 1),) * self.dims

    def pack(self, value: Any) -> Any:
        return np.asarray(value).reshape((1,) * self.dims)

    def unpack(self, array: Any) -> Any:
        return np.asarray(array).reshape(1, 1)

    def grain(self, inner: Grain) -> Grain:
        return 1, 1


@dataclass(frozen=True, slots=True)
class Vector:
    """One scale for each matrix of a stack: [E, 1, 1] ↔ [E]."""

    dtype: str

    def box(self, box: Box) -> Box:
        return box[:1]

    def pack(self, value: Any) -> Any:
        return np.asarray(value).reshape(-1)

    def unpack(self, array: Any) -> Any:
        return np.asarray(array).reshape(-1, 1, 1)

    def grain(self, inner: Grain) -> Grain:
        return *inner, 1, 1


@dataclass(frozen=True, slots=True)
class Flat:
    """Rows one after the other: [out, width] ↔ [out · width], or [out · width, 1] with `column`.

    Attributes:
        dtype: of the leaf.
        width: elements (for codes: bytes) of a row.
        column: the leaf has a last dimension of 1.
        swap: the nibbles of each byte change places: the first element lies in the high one.
    """

    dtype: str
    width: int
    column: bool = False
    swap: bool = False

    def box(self, box: Box) -> Box:
        """
        Raises:
            IndexError: the box is neither of whole rows nor part of a single one.
        """
        rows, last = box
        if last != slice(0, self.width) and rows.stop - rows.start != 1:
            raise IndexError(f"columns {last.start}:{last.stop} of {self.width}: a flat leaf is cut at whole rows")
        flat = slice(rows.start * self.width + last.start, (rows.stop - 1) * self.width + last.stop)
        return (flat, slice(0, 1)) if self.column else (flat,)

    def pack(self, value: Any) -> Any:
        flat = np.ascontiguousarray(value).reshape((-1, 1) if self.column else -1)
        return _swapped(flat) if self.swap else flat

    def unpack(self, array: Any) -> Any:
        rows = np.ascontiguousarray(array).reshape(-1, min(self.width, array.size) or 1)  # or part of one
        return _swapped(rows) if self.swap else rows

    def grain(self, inner: Grain) -> Grain:
        return 1, 1


def offset_binary(codes: Any, bits: int) -> Any:
    """uint8 [..., n] of packed `bits`-bit integers with the top bit of each turned over; its own inverse."""
    codes = np.ascontiguousarray(codes)
    period = bits // gcd(bits, 8)  # bytes after which elements begin at bit 0 again
    tops = np.zeros(period * 8, np.uint8)
    tops[bits - 1 :: bits] = 1
    mask = np.packbits(tops, bitorder="little")  # rows of whole bytes are whole periods
    return (codes.reshape(*codes.shape[:-1], -1, period) ^ mask).reshape(codes.shape) if codes.size else codes


def _swapped(array: Any) -> Any:
    return (array << np.uint8(4)) | (array >> np.uint8(4))

"""How tensors lie in ggml's blocks, as packings.

A block is a struct: scale, perhaps minimum, then the elements, interleaved in a row. Where a scheme says the same, the
block is taken apart and put together again without touching a value.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pipeline.errors import ValueRangeError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import numpy_dtype
from pipeline.tensors.steps import Box, Grain
from plugins.formats.gguf.decode import decode
from plugins.formats.gguf.types import GGML, PLAIN, SCHEMES


@dataclass(frozen=True, slots=True)
class Ggml:
    """The packing of one tensor, a `pipeline.tensors.steps.Step`.

    For a plain type the part's component is `values`; for a type that is a scheme `*`; for any other `values`, decoded
    to F32.

    Attributes:
        kind: ggml type of the leaf.
        given: dtype of the values of a plain tensor, when the leaf's is a wider one.
        head: when > 0, rows of each group of `head` rows are reordered: row 2i + p of the leaf is row p · head/2 + i
            of the tensor. llama.cpp rotates neighbouring rows for its `llama` architecture, Hugging Face the two
            halves of a head (`permute` in llama.cpp's conversion/llama.py).
        plus: the leaf holds the values plus one, an fp32 sum: the norms of Gemma (`norm_shift` in conversion/gemma.py).
            It is the factor that the model computes with, 1 + weight in fp32, so a rounded sum changes no result; less
            one it is the weight again, bit for bit, if that is a multiple of 2^-23 (bf16: from 2^-16 on).
    """

    kind: str
    given: str = ""
    head: int = 0
    plus: bool = False

    @property
    def dtype(self) -> str:
        return self.kind if self.kind in PLAIN else "U8"

    def grain(self, inner: Grain) -> Grain:
        """A box cuts no head of a reordered tensor, and no block, also of a type that becomes plain values."""
        rows, block = self.head or 1, GGML[self.kind].block
        return (*inner[:-2], rows, block) if len(inner) > 1 else (math.lcm(rows, block),)

    def box(self, box: Box) -> Box:
        """See `Step.box`.

        Raises:
            IndexError: the box cuts a block, or a head of a reordered tensor.
        """
        *lead, last = box
        whole_heads(box[-2] if lead else last, self.head)
        if self.kind in PLAIN:
            return box
        t = GGML[self.kind]
        if last.start % t.block or last.stop % t.block:
            raise IndexError(f"{last.start}:{last.stop} cuts a block of {t.block} elements ({self.kind})")
        return (*lead, slice(last.start // t.block * t.nbytes, last.stop // t.block * t.nbytes))

    def unpack(self, array: Any) -> Any:
        """Leaf → plain values or a QTensor. Reordering is done on rows of bytes, before they are taken apart."""
        if self.head:
            array = _reorder(array, self.head, to_halves=True)
        if self.kind in PLAIN:
            if self.plus:
                array = array.astype(np.float32) - np.float32(1)
            return array.astype(numpy_dtype(self.given)) if self.given else array
        if self.kind in SCHEMES:
            return unpack(self.kind, array)
        return decode(self.kind, array)

    def pack(self, value: Any) -> Any:
        """The inverse; widening is exact.

        Raises:
            ValueRangeError: a scale that the ggml type cannot hold.
            AssertionError: a type that is read only; dialects refuse it when planning.
        """
        if self.kind in PLAIN:
            array = np.asarray(value).astype(numpy_dtype(self.kind), copy=False)
            if self.plus:
                array = array + np.float32(1)
        else:
            assert self.kind in SCHEMES, f"{self.kind} can be read and not written"
            array = pack(self.kind, value)
        return _reorder(array, self.head, to_halves=False) if self.head else array


@dataclass(frozen=True, slots=True)
class Structs:
    """The packing of codes that are bytes of ggml's blocks already, a `pipeline.tensors.steps.Step`.

    Attributes:
        kind: ggml type of the leaf.
        head: see `Ggml`.
    """

    kind: str
    head: int = 0
    dtype: ClassVar[str] = "U8"

    def grain(self, inner: Grain) -> Grain:
        return (*inner[:-2], self.head or 1, inner[-1])

    def box(self, box: Box) -> Box:
        """
        Raises:
            IndexError: the box cuts a head of a reordered tensor.
        """
        whole_heads(box[-2], self.head)
        return box

    def unpack(self, array: Any) -> Any:
        return _reorder(array, self.head, to_halves=True) if self.head else array

    def pack(self, value: Any) -> Any:
        array = np.asarray(value)
        return _reorder(array, self.head, to_halves=False) if self.head else array


def whole_heads(rows: slice, head: int) -> None:
    """Raises IndexError where `rows` cut a head of `head` rows, or of 0: of none."""
    if head and (rows.start % head or rows.stop % head):
        raise IndexError(f"{rows.start}:{rows.stop} cuts a head of {head} rows, whose rows are reordered")


@dataclass(frozen=True, slots=True)
class OfStack:
    """A matrix that is number `index` of those stacked in the leaf: experts that are tensors of their own outside."""

    index: int
    of: Ggml | Structs

    @property
    def dtype(self) -> str:
        return self.of.dtype

    def box(self, box: Box) -> Box:
        return (slice(self.index, self.index + 1), *self.of.box(box))

    def pack(self, value: Any) -> Any:
        return self.of.pack(value)[None]

    def unpack(self, array: Any) -> Any:
        return self.of.unpack(array[0])

    def grain(self, inner: Grain) -> Grain:
        return self.of.grain(inner[1:])


@dataclass(frozen=True, slots=True)
class PerMatrix:
    """The second scales of a tensor as a vector of one number a matrix.

    Attributes:
        index: which of them belongs to the tensor, a single matrix; None for a stack of matrices, which has all.
    """

    index: int | None = None
    dtype: str = "F32"

    def box(self, box: Box) -> Box:
        return box[:-2] if self.index is None else (slice(self.index, self.index + 1),)

    def pack(self, value: Any) -> Any:
        return np.asarray(value).reshape(-1)

    def unpack(self, array: Any) -> Any:
        return array.reshape((-1, 1, 1) if self.index is None else (1, 1))

    def grain(self, inner: Grain) -> Grain:
        return (*inner, 1, 1) if self.index is None else (1, 1)


def unpack(kind: str, array: Any) -> QTensor:
    """Rows of ggml blocks, uint8 [..., n], as a QTensor of one of `SCHEMES`."""
    t, scheme = GGML[kind], SCHEMES[kind]
    shape = (*array.shape[:-1], array.shape[-1] // t.nbytes * t.block)
    blocks = np.ascontiguousarray(array).reshape(-1, t.nbytes)
    found = {name: np.empty(dims, numpy_dtype(scheme.dtypes[name])) for name, dims in scheme.components(shape).items()}
    flat = {name: a.reshape(-1).view(np.uint8).reshape(len(blocks), -1) for name, a in found.items()}
    for start in range(0, len(blocks), _TILE):
        tile = slice(start, start + _TILE)
        at = 0
        for name in _ORDER[kind]:
            out = flat[name][tile]
            field = _field(blocks[tile], at, out.shape[1])
            at += out.shape[1]
            if name == "codes" and kind != "Q8_0":
                _to_neighbours(field, out, scheme.block_elems // 2)
                if kind == "Q4_0":
                    out ^= 0x88  # q + 8 → two's complement
            else:
                out[...] = field
    return QTensor(scheme=scheme, **found)


def pack(kind: str, q: QTensor) -> Any:
    """The inverse of `unpack`. A second scale of `q` is not in the blocks.

    Raises:
        ValueRangeError: a scale that the ggml type cannot hold.
    """
    t, scheme = GGML[kind], SCHEMES[kind]
    shape = q.shape
    out = np.empty((*shape[:-1], shape[-1] // t.block * t.nbytes), np.uint8)
    blocks = out.reshape(-1, t.nbytes)
    flat = {n: np.ascontiguousarray(q.component(n)).reshape(-1).view(np.uint8) for n in _ORDER[kind]}
    if kind == "NVFP4" and (bad := np.flatnonzero(flat["scales"] >= 0x7F)).size:
        raise ValueRangeError(f"block scale {int(bad[0])} is negative or NaN; NVFP4 of ggml has unsigned finite scales")
    for start in range(0, len(blocks), _TILE):
        tile = slice(start, start + _TILE)
        at = 0
        for name in _ORDER[kind]:
            field = flat[name].reshape(len(blocks), -1)[tile]
            if name == "codes" and kind != "Q8_0":
                field = _to_halves(field ^ 0x88 if kind == "Q4_0" else field, scheme.block_elems // 2)
            size = field.shape[1]
            blocks[tile, at : at + size].view(f"V{size}")[...] = field.view(f"V{size}")
            at += size
    return out


# What lies in a block, in order.
_ORDER: dict[str, tuple[str, ...]] = dict.fromkeys(SCHEMES, ("scales", "codes")) | {
    "Q4_1": ("scales", "zeros", "codes")
}
_TILE = 1 << 14  # blocks: what is taken apart at once stays in the cache


def _field(blocks: Any, at: int, size: int) -> Any:
    """Bytes `at` to `at + size` of every block, contiguous; copied a block at a time, not a byte."""
    return np.ascontiguousarray(blocks[:, at : at + size].view(f"V{size}")).view(np.uint8)


def _to_neighbours(field: Any, out: Any, nbytes: int) -> None:
    """Groups of `nbytes` bytes of 4-bit elements: byte j = element j | j + nbytes → byte j = element 2j | 2j + 1."""
    words = field.view("<u2")
    half = f"<u{nbytes // 2}"  # what becomes of the low nibbles of a group, as one number
    halves = out.view(half)
    halves[:, 0::2] = ((words & 0x0F) | ((words >> 4) & 0xF0)).astype(np.uint8).view(half)
    halves[:, 1::2] = (((words >> 4) & 0x0F) | ((words >> 8) & 0xF0)).astype(np.uint8).view(half)


def _to_halves(codes: Any, nbytes: int) -> Any:
    """The inverse of `_to_neighbours`."""
    halves = codes.view(f"<u{nbytes // 2}")
    low = np.ascontiguousarray(halves[:, 0::2]).view(np.uint8).astype("<u2")
    high = np.ascontiguousarray(halves[:, 1::2]).view(np.uint8).astype("<u2")
    words = (low & 0x0F) | ((low & 0xF0) << 4) | ((high & 0x0F) << 4) | ((high & 0xF0) << 8)
    return words.view(np.uint8)


def _reorder(array: Any, head: int, to_halves: bool) -> Any:
    """Rows of every head between neighbouring pairs (ggml) and two halves (Hugging Face); rows of a vector are it."""
    vector = array.ndim == 1
    rows = array[:, None] if vector else array
    inner = (head // 2, 2) if to_halves else (2, head // 2)
    groups = rows.reshape(*rows.shape[:-2], -1, *inner, rows.shape[-1]).swapaxes(-3, -2)
    return np.ascontiguousarray(groups).reshape(array.shape)

"""The tensor types of ggml: their numbers and sizes, the schemes that some of them are, and the bytes of their blocks.

A ggml block is a struct: scale, perhaps minimum, then the elements of one block, interleaved in a row. Where a scheme
says the same (element · scale, nothing hidden), the block is taken apart and put together again without touching a
value. The other types (Q4_K, IQ2_XS, …) have no scheme: they can be read, decoded by the `gguf` package, not written.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import ValueRangeError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec, numpy_dtype


@dataclass(frozen=True, slots=True)
class GgmlType:
    """A tensor type: `nbytes` bytes hold `block` consecutive elements of a row."""

    number: int
    block: int
    nbytes: int


# enum ggml_type and the block structs of ggml-common.h (ggml 0.9).
GGML = {
    "F32": GgmlType(0, 1, 4), "F16": GgmlType(1, 1, 2), "Q4_0": GgmlType(2, 32, 18), "Q4_1": GgmlType(3, 32, 20),
    "Q5_0": GgmlType(6, 32, 22), "Q5_1": GgmlType(7, 32, 24), "Q8_0": GgmlType(8, 32, 34), "Q8_1": GgmlType(9, 32, 40),
    "Q2_K": GgmlType(10, 256, 84), "Q3_K": GgmlType(11, 256, 110), "Q4_K": GgmlType(12, 256, 144),
    "Q5_K": GgmlType(13, 256, 176), "Q6_K": GgmlType(14, 256, 210), "Q8_K": GgmlType(15, 256, 292),
    "IQ2_XXS": GgmlType(16, 256, 66), "IQ2_XS": GgmlType(17, 256, 74), "IQ3_XXS": GgmlType(18, 256, 98),
    "IQ1_S": GgmlType(19, 256, 50), "IQ4_NL": GgmlType(20, 32, 18), "IQ3_S": GgmlType(21, 256, 110),
    "IQ2_S": GgmlType(22, 256, 82), "IQ4_XS": GgmlType(23, 256, 136), "I8": GgmlType(24, 1, 1),
    "I16": GgmlType(25, 1, 2), "I32": GgmlType(26, 1, 4), "I64": GgmlType(27, 1, 8), "F64": GgmlType(28, 1, 8),
    "IQ1_M": GgmlType(29, 256, 56), "BF16": GgmlType(30, 1, 2), "TQ1_0": GgmlType(34, 256, 54),
    "TQ2_0": GgmlType(35, 256, 66), "MXFP4": GgmlType(39, 32, 17), "NVFP4": GgmlType(40, 64, 36),
    "Q1_0": GgmlType(41, 128, 18),
}  # fmt: skip
NAMES = {t.number: name for name, t in GGML.items()}
PLAIN = frozenset(name for name, t in GGML.items() if t.block == 1)  # safetensors spells these the same
NVFP4 = Scheme("e2m1", 16, "e4m3")  # its second scale is a tensor of its own, and may be missing
SCHEMES = {
    "MXFP4": MXFP4,
    "NVFP4": NVFP4,
    "Q8_0": Scheme("int8", 32, "f16"),
    "Q4_0": Scheme("int4", 32, "f16"),
    "Q4_1": Scheme("uint4", 32, "f16", zero="min_f16"),
}
UNREADABLE = frozenset({"Q8_1", "Q8_K", "Q1_0"})  # the gguf package (0.19) has no decoder; the first two are transient
# llama_ftype of llama.h, for a file whose matrices are mostly of a type.
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "BF16": 32, "MXFP4": 38, "NVFP4": 39}


def type_of(spec: TensorSpec) -> str | None:
    """The ggml type that holds tensors of `spec` as they are, or None."""
    if spec.scheme is None:
        return spec.dtype if spec.dtype in PLAIN else None
    scheme = spec.scheme
    if scheme.second == "f32":
        scheme = Scheme(scheme.element, scheme.block_elems, scheme.scale, scheme.block_rows, scheme.zero)
    if spec.scheme.second is not None and scheme != NVFP4:
        return None
    return next((name for name, s in SCHEMES.items() if s == scheme), None)


def stored_shape(kind: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the leaf: bytes in the last dimension of block types.

    Raises:
        ValueError: rows are no whole number of blocks.
    """
    t = GGML[kind]
    if kind in PLAIN:
        return shape
    if not shape or shape[-1] % t.block:
        raise ValueError(f"{kind} has blocks of {t.block} elements, which do not divide rows of {shape[-1:] or 'none'}")
    return (*shape[:-1], shape[-1] // t.block * t.nbytes)


@dataclass(frozen=True, slots=True)
class Ggml:
    """The packing of one tensor (`pipeline.formats.Packing`).

    For a plain type the part's component is `values`; for a type that is a scheme `*`; for any other `values`, decoded
    to F32.

    Attributes:
        kind: ggml type of the leaf.
        given: dtype of the values of a plain tensor, when the leaf's is a wider one.
        head: when > 0, rows of each group of `head` rows are reordered: row 2i + p of the leaf is row p · head/2 + i
            of the tensor. llama.cpp rotates neighbouring rows for its `llama` architecture, Hugging Face the two
            halves of a head (`permute` in llama.cpp's conversion/llama.py).
    """

    kind: str
    given: str = ""
    head: int = 0

    @property
    def dtype(self) -> str:
        return self.kind if self.kind in PLAIN else "U8"

    @property
    def row_multiple(self) -> int:
        return self.head or 1

    def box(self, box: tuple[slice, ...]) -> tuple[slice, ...]:
        """See `Packing.box`.

        Raises:
            IndexError: the box cuts a block, or a head of a reordered tensor.
        """
        *lead, last = box
        if self.head:
            rows = box[-2] if lead else last
            if rows.start % self.head or rows.stop % self.head:
                raise IndexError(f"{rows.start}:{rows.stop} cuts a head of {self.head} rows, whose rows are reordered")
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
            return array.astype(numpy_dtype(self.given)) if self.given else array
        if self.kind in SCHEMES:
            return unpack(self.kind, array)
        from gguf import GGMLQuantizationType, dequantize

        return dequantize(np.ascontiguousarray(array), GGMLQuantizationType(GGML[self.kind].number))

    def pack(self, value: Any) -> Any:
        """The inverse; widening is exact.

        Raises:
            ValueRangeError: a scale that the ggml type cannot hold.
            AssertionError: a type that is read only; dialects refuse it when planning.
        """
        if self.kind in PLAIN:
            array = np.asarray(value).astype(numpy_dtype(self.kind), copy=False)
        else:
            assert self.kind in SCHEMES, f"{self.kind} can be read and not written"
            array = pack(self.kind, value)
        return _reorder(array, self.head, to_halves=False) if self.head else array


@dataclass(frozen=True, slots=True)
class PerMatrix:
    """The second scales of a tensor as a vector of one number a matrix; `[1]` for a single matrix."""

    dtype: str = "F32"
    row_multiple: int = 1

    def box(self, box: tuple[slice, ...]) -> tuple[slice, ...]:
        return box[:-2] or (slice(0, 1),)

    def pack(self, value: Any) -> Any:
        return np.asarray(value).reshape(-1)

    def unpack(self, array: Any) -> Any:
        return array.reshape((-1, 1, 1) if array.shape != (1,) else (1, 1))


def unpack(kind: str, array: Any) -> QTensor:
    """Rows of ggml blocks, uint8 [..., n], as a QTensor of one of `SCHEMES`."""
    t, scheme = GGML[kind], SCHEMES[kind]
    blocks = np.ascontiguousarray(array).reshape(*array.shape[:-1], -1, t.nbytes)
    head, body = np.split(blocks, [_HEAD_NBYTES[kind]], axis=-1)
    rows, width = array.shape[:-1], blocks.shape[-2] * t.block
    scales, zeros = head, None
    if kind == "Q8_0":
        codes = body
    else:
        codes = _to_neighbours(body, scheme.block_elems // 2)
        if kind == "Q4_0":
            codes ^= np.uint8(0x88)  # q + 8 → two's complement
    if kind == "Q4_1":
        scales, zeros = np.split(head, 2, axis=-1)
        zeros = _typed(zeros, "F16")
    if kind != "MXFP4":
        scales = _typed(scales, scheme.dtypes["scales"])
    return QTensor(
        codes=np.ascontiguousarray(codes).reshape(*rows, width * scheme.element_bits // 8),
        scales=np.ascontiguousarray(scales).reshape(*rows, width // scheme.block_elems),
        zeros=None if zeros is None else zeros.reshape(*rows, -1),
        scheme=scheme,
    )


def pack(kind: str, q: QTensor) -> Any:
    """The inverse of `unpack`. A second scale of `q` is not in the blocks."""
    t, scheme = GGML[kind], SCHEMES[kind]
    codes = np.ascontiguousarray(q.codes)
    blocks = codes.reshape(*codes.shape[:-1], -1, t.block * scheme.element_bits // 8)
    if kind == "Q4_0":
        blocks = blocks ^ np.uint8(0x88)
    if kind != "Q8_0":
        blocks = _to_halves(blocks, scheme.block_elems // 2)
    parts = [_bytes(q.scales, blocks.shape[:-1])]
    if kind == "NVFP4" and (bad := np.flatnonzero(parts[0].reshape(-1) >= 0x7F)).size:
        raise ValueRangeError(f"block scale {int(bad[0])} is negative or NaN; NVFP4 of ggml has unsigned finite scales")
    if q.zeros is not None:
        parts.append(_bytes(q.zeros, blocks.shape[:-1]))
    return np.concatenate([*parts, blocks], axis=-1).reshape(*codes.shape[:-1], -1)


_HEAD_NBYTES = {"MXFP4": 1, "NVFP4": 4, "Q8_0": 2, "Q4_0": 2, "Q4_1": 4}  # what comes before the elements of a block


def _typed(array: Any, dtype: str) -> Any:
    return np.ascontiguousarray(array).view(numpy_dtype(dtype))


def _bytes(array: Any, blocks: tuple[int, ...]) -> Any:
    return np.ascontiguousarray(array).view(np.uint8).reshape(*blocks, -1)


def _to_neighbours(packed: Any, nbytes: int) -> Any:
    """Groups of `nbytes` bytes of 4-bit elements: byte j = element j | j + nbytes → byte j = element 2j | 2j + 1."""
    groups = packed.reshape(*packed.shape[:-1], -1, nbytes)
    out = np.empty_like(groups, order="C")
    even, odd = groups[..., 0::2], groups[..., 1::2]
    np.bitwise_or(even & 0x0F, odd << 4, out=out[..., : nbytes // 2])
    np.bitwise_or(even >> 4, odd & 0xF0, out=out[..., nbytes // 2 :])
    return out.reshape(packed.shape)


def _to_halves(packed: Any, nbytes: int) -> Any:
    """The inverse of `_to_neighbours`."""
    groups = packed.reshape(*packed.shape[:-1], -1, nbytes)
    out = np.empty_like(groups, order="C")
    low, high = groups[..., : nbytes // 2], groups[..., nbytes // 2 :]
    np.bitwise_or(low & 0x0F, high << 4, out=out[..., 0::2])
    np.bitwise_or(low >> 4, high & 0xF0, out=out[..., 1::2])
    return out.reshape(packed.shape)


def _reorder(array: Any, head: int, to_halves: bool) -> Any:
    """Rows of every head between neighbouring pairs (ggml) and two halves (Hugging Face); rows of a vector are it."""
    vector = array.ndim == 1
    rows = array[:, None] if vector else array
    inner = (head // 2, 2) if to_halves else (2, head // 2)
    groups = rows.reshape(*rows.shape[:-2], -1, *inner, rows.shape[-1]).swapaxes(-3, -2)
    return np.ascontiguousarray(groups).reshape(array.shape)

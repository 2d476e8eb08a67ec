"""The tensor types of ggml: their numbers and sizes, and the schemes that some of them are.

Those that are a struct of `pipeline.tensors.scheme` (Q4_K, …) are read and written as the bytes that they are. All
others (IQ2_XS, …) are read as the values they decode to (`decode`), and cannot be written.
"""

from dataclasses import dataclass

from pipeline.tensors.scheme import INSIDE, MXFP4, STRUCTS, Scheme
from pipeline.tensors.spec import TensorSpec


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
KEPT_WHOLE = {name.upper(): Scheme(name, elems, INSIDE) for name, (elems, _) in STRUCTS.items()}
UNREADABLE = frozenset({"Q8_1", "Q1_0"})  # no decoder in the gguf package (0.19), nor here; Q8_1 is transient in ggml
# llama_ftype of llama.h, for a file whose matrices are mostly of a type.
FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K": 11, "Q4_K": 14,
    "Q5_K": 16, "Q6_K": 18, "IQ4_NL": 25, "BF16": 32, "MXFP4": 38, "NVFP4": 39,
}  # fmt: skip


def type_of(spec: TensorSpec) -> str | None:
    """The ggml type that holds tensors of `spec` as they are, or None."""
    if spec.scheme is None:
        return spec.dtype if spec.dtype in PLAIN else None
    scheme = spec.scheme
    if scheme.is_struct:
        return scheme.element.upper()
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

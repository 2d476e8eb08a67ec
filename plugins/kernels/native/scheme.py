"""Schemes as the C++ knows them: numbers in the order of src/weights.h. No framework here."""

from typing import Final, NamedTuple

from pipeline.tensors.spec import TensorSpec

ELEMENTS: Final = (
    "F32", "BF16", "F16", "e2m1", "e2m3", "e3m2", "e4m3", "e5m2", "mxint8", "nf4",
    "int8", "int4", "int3", "int2", "uint8", "uint4", "uint3", "uint2",
    "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q5_0", "q5_1", "iq4_nl",
)  # fmt: skip
SCALES: Final = (None, "e8m0", "e4m3", "f16", "bf16", "f32", "dynamic8")
ZEROS: Final = (None, "int", "min_f16")
SECONDS: Final = (None, "f32", "inverse_f32", "dynamic8")
HAVE_MINIMA: Final = ("q2_k", "q4_k", "q5_k", "q5_1")
"""Structs whose values lose something by way of the sums of activations, as those do that have a minimum."""
INTEGERS: Final = {"e2m1": 8, "int4": 8, "uint4": 8, "int8": 4, "uint8": 4, "mxint8": 4}
"""Elements of four and eight bits that are integers in some unit, and how many of them a lane of 32 bits meets."""

ROUNDED_ROWS: Final = {8: 24, 16: 48}
"""By bits of integers, rows of activations that make up for it where weights must be made such integers first; of fewer
exact products are faster (measured with AVX-512)."""

FEW_ROWS: Final = 4
MORE_ROWS: Final = 8
"""Rows of activations up to which weights are read for some of them at a time, and not decoded first: where the two
cross on Zen 5, for most formats; and where float32 activations meet wide elements, on Emerald Rapids, or with AVX2
integers of four bits, on Zen 3 (`few_rows`)."""
UNIT: Final = 32
"""Activations that share a power of two where they become integers with AVX2, as in src/gemv_call.h."""
WIDE_BITS: Final = 6
"""Of elements, from which on as many as `MORE_ROWS` share a pass (src/gemv_add.h)."""


class Numbers(NamedTuple):
    """Attributes of a handler: what `struct Weights` says of a format. A block of 0 is all there are."""

    element: int
    scale: int
    zero: int
    second: int
    block_rows: int
    block_elems: int


def unknown(w: TensorSpec) -> str | None:
    """Why the C++ has no numbers for weights, None when it has."""
    if w.scheme is None and w.dtype not in ELEMENTS[:3]:
        return f"{w.dtype} weights are not among {', '.join(ELEMENTS[:3])}"
    return None


def numbers(w: TensorSpec) -> Numbers:
    """Of weights that are not `unknown`."""
    s = w.scheme
    if s is None:
        return Numbers(ELEMENTS.index(w.dtype), 0, 0, 0, 1, 0)
    if s.is_struct:
        zero = ZEROS.index("min_f16" if s.element in HAVE_MINIMA else None)
        return Numbers(ELEMENTS.index(s.element), 0, zero, 0, 1, 0)  # no scales beside the codes
    found = ELEMENTS.index(s.element), SCALES.index(s.scale), ZEROS.index(s.zero), SECONDS.index(s.second)
    return Numbers(*found, s.block_rows, s.block_elems)


def takes_integers(w: TensorSpec) -> bool:
    """Whether a few rows of activations that are rounded to integers meet such weights as integers: elements of four
    or eight bits that are integers in some unit, in blocks of no fewer of them than a register's lane holds
    (src/gemv_rounded.h)."""
    s = w.scheme
    if s is None or s.element not in INTEGERS:
        return False
    return s.block_elems % INTEGERS[s.element] == 0 or s.block_elems >= w.shape[-1]


def rounded_rows(w: TensorSpec, bits: int) -> int:
    """From how many rows of activations to a matrix on products of integers of so many bits are faster than exact ones:
    0, any number, where codes become such integers by a look-up (src/gemm_int_weights.h)."""
    s = w.scheme
    quick = s is not None and (takes_integers(w) or (s.is_struct and s.element != "q2_k"))
    if bits == 16:
        quick = quick and s is not None and INTEGERS.get(s.element) == 8
    return 0 if quick or not bits else ROUNDED_ROWS[bits]


def few_rows(w: TensorSpec, floats: bool, isa: str) -> int:
    """Rows of activations a matrix up to which `src/gemv.h` is faster than `src/gemm.h`.

    Args:
        floats: activations are float32, and stay what they are.
        isa: one of `library.ISAS`.
    """
    s = w.scheme
    wide = s is None or (not s.is_struct and s.element_bits >= WIDE_BITS)
    return MORE_ROWS if floats and (wide or (isa == "avx2" and _in_digits(w))) else FEW_ROWS


def _in_digits(w: TensorSpec) -> bool:
    """Whether float32 activations become digits for such weights with AVX2 (src/gemv_fixed_avx2.h)."""
    s = w.scheme
    if s is None or INTEGERS.get(s.element) != 8:
        return False
    return 0 < s.block_elems < w.shape[-1] and s.block_elems % UNIT == 0

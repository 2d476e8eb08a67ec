"""What the bytes of a quantized tensor mean: enough to decode them, nothing about how they were made."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd, lcm

from pipeline.errors import ConfigError, did_you_mean

# Bits of each element encoding. e…m…: OCP Microscaling Formats (MX) v1.0, section 5.3 (and OCP 8-bit floating point
# for E4M3 and E5M2); mxint8: the same, section 5.3.4, two's complement with 6 fraction bits; nf4: QLoRA, appendix E;
# int…: two's complement; uint…: unsigned, always with a zero point or a minimum.
ELEMENT_BITS = {
    "e2m1": 4, "e2m3": 6, "e3m2": 6, "e4m3": 8, "e5m2": 8, "mxint8": 8, "nf4": 4,
    "int8": 8, "int4": 4, "int3": 3, "int2": 2, "uint8": 8, "uint4": 4, "uint3": 3, "uint2": 2,
}  # fmt: skip
# Blocks of ggml that have no components of their own: element → (elements, bytes) of its struct in ggml-common.h (ggml
# 0.25), which holds codes, scales and minima, the scales of most quantized themselves.
STRUCTS = {
    "q2_k": (256, 84), "q3_k": (256, 110), "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210),
    "q5_0": (32, 22), "q5_1": (32, 24), "iq4_nl": (32, 18),
}  # fmt: skip
# … → where in it the fp16 numbers are, which all other scales and minima are multiplied by.
STRUCT_HALVES = {
    "q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,),
    "q5_0": (0,), "q5_1": (0, 2), "iq4_nl": (0,),
}  # fmt: skip
INSIDE = "inside"  # the scale of those
SCALE_DTYPES = {"e8m0": "U8", "e4m3": "F8_E4M3", "f16": "F16", "bf16": "BF16", "f32": "F32", "dynamic8": "U8"}
ZEROS = {"int": "U8", "min_f16": "F16"}
SECONDS = ("f32", "inverse_f32", "dynamic8")
DYNAMIC8_BLOCK = 256  # scales that share one second-level scale in bitsandbytes' double quantization


@dataclass(frozen=True, slots=True)
class Scheme:
    """A block format: elements in tiles of `block_rows` × `block_elems` of a tensor's last two axes share a scale.

    A value decodes as element · scale, or (element - zero) · scale, or element · scale + minimum; a second-level scale
    multiplies (or, `inverse_f32`, divides) it again. Leading axes are a batch: each of their matrices is on its own.

    Invariants: `codes` is uint8 `[..., rows, n * element_bits / 8]`, a little-endian bit stream along the last axis
    (the first of two 4-bit elements lies in the low nibble), whatever order a file uses; rows fill whole bytes; the
    other components have the shapes of `components` and the dtypes of `dtypes`; decoding needs nothing else. Two
    tensors with equal schemes and equal bytes hold equal values. Of blocks that are structs of ggml (`STRUCTS`) `codes`
    has the bytes, uint8 `[..., rows, n / block_elems * bytes of a block]`, as files have them too; there is no other
    component.

    Attributes:
        element: element encoding, a key of `ELEMENT_BITS`, or of `STRUCTS`.
        block_elems: columns (last axis) that share a scale, or a struct; 0 means all of them.
        scale: scale encoding, a key of `SCALE_DTYPES`; `inside`: in the struct.
        block_rows: rows that share a scale; 0 means all of them.
        zero: None; `int`: one unsigned zero point a block, subtracted from the code; `min_f16`: one fp16 minimum a
            block, added after scaling.
        second: None; `f32`: one more fp32 scale a matrix; `inverse_f32`: the same, stored as its reciprocal;
            `dynamic8`: the scales themselves are codes of bitsandbytes' dynamic 8-bit map, over flat blocks of 256
            with fp32 scales, followed by one fp32 offset that all scales share (with `scale="dynamic8"`).
    """

    element: str
    block_elems: int
    scale: str
    block_rows: int = 1
    zero: str | None = None
    second: str | None = None

    def __post_init__(self) -> None:
        if self.element in STRUCTS:
            self._check_struct()
            return
        allowed: dict[str, Iterable[str | None]] = {
            "element": (*ELEMENT_BITS, *STRUCTS),
            "scale": SCALE_DTYPES,
            "zero": (None, *ZEROS),
            "second": (None, *SECONDS),
        }
        for name, choices in allowed.items():
            given = getattr(self, name)
            if given not in choices:
                listed = [str(c) for c in choices if c is not None]
                raise ConfigError(f"scheme {name} {given!r} is unknown{did_you_mean(str(given), listed)}")
        if self.block_elems < 0 or self.block_rows < 0:
            raise ConfigError(f"scheme block of {self.block_rows} × {self.block_elems}: 0 means all, negative nothing")
        if self.element.startswith("uint") != (self.zero is not None):
            raise ConfigError(
                f"scheme element {self.element} with zero={self.zero}: unsigned elements, and only they, have one"
            )
        if (self.scale == "dynamic8") != (self.second == "dynamic8"):
            raise ConfigError("scheme scale=dynamic8 and second=dynamic8 come together")

    def _check_struct(self) -> None:
        wanted = (STRUCTS[self.element][0], INSIDE, 1, None, None)
        if (self.block_elems, self.scale, self.block_rows, self.zero, self.second) != wanted:
            raise ConfigError(
                f"scheme element {self.element} is a whole block of ggml's: of {wanted[0]} in a row, {INSIDE}"
            )

    @property
    def is_struct(self) -> bool:
        """Whether a block is a struct of ggml, one of `STRUCTS`."""
        return self.element in STRUCTS

    @property
    def element_bits(self) -> int:
        """Of one code; a struct has none that stand alone."""
        return ELEMENT_BITS[self.element]

    @property
    def period(self) -> tuple[int, int]:
        """(columns, their bytes in `codes`), the fewest that begin and end with a byte: a struct, or some codes."""
        if self.is_struct:
            return STRUCTS[self.element]
        shared = gcd(8, self.element_bits)
        return 8 // shared, self.element_bits // shared

    @property
    def column_grain(self) -> int:
        """Columns whose multiples are whole blocks and whole bytes: blocks down a column (`block_elems=1`) share bytes.

        Where whole rows share a scale every slice of a row has it, and only bytes count.
        """
        return lcm(self.block_elems or 1, self.period[0])

    def blocks(self, rows: int, columns: int) -> tuple[int, int]:
        """Scales down and across a matrix."""
        return (
            -(-rows // self.block_rows) if self.block_rows else 1,
            -(-columns // self.block_elems) if self.block_elems else 1,
        )

    def problem(self, shape: tuple[int, ...]) -> str | None:
        """Why a tensor of this shape cannot be stored in this scheme, or None."""
        if not shape:
            return "a scalar has no blocks"
        if self.block_elems and shape[-1] % self.block_elems:
            return f"last dimension {shape[-1]} is not a multiple of the block of {self.block_elems}"
        if shape[-1] % self.period[0]:
            return f"last dimension {shape[-1]} of {self.element_bits}-bit elements does not fill whole bytes"
        if len(shape) == 1 and self.block_rows != 1:
            return "a vector has no rows to share scales"
        return None  # a last band of fewer than block_rows rows is fine: it has a scale of its own

    def components(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Shapes of the component arrays of a tensor of logical `shape`; their dtypes are `dtypes`."""
        *lead, n = shape
        rows = lead[-1] if lead else 1
        down, across = self.blocks(rows, n)
        scales = (*lead[:-1], down, across) if lead else (across,)
        columns, nbytes = self.period
        found = {"codes": (*lead, n * nbytes // columns)}
        if self.is_struct:
            return found
        found["scales"] = scales
        if self.zero is not None:
            found["zeros"] = scales
        if self.second == "dynamic8":
            count = 1
            for d in scales:
                count *= d
            found["second"] = (-(-count // DYNAMIC8_BLOCK) + 1,)
        elif self.second is not None:
            found["second"] = (*lead[:-1], 1, 1) if lead else (1,)
        return found

    @property
    def dtypes(self) -> dict[str, str]:
        """Dtype of every component."""
        if self.is_struct:
            return {"codes": "U8"}
        found = {"codes": "U8", "scales": SCALE_DTYPES[self.scale]}
        if self.zero is not None:
            found["zeros"] = ZEROS[self.zero]
        if self.second is not None:
            found["second"] = "F32"
        return found

    @property
    def whole_only(self) -> bool:
        """Whether the tensor can only be read and written whole (its scales are coded across all of it)."""
        return self.second == "dynamic8"


MXFP4 = Scheme(element="e2m1", block_elems=32, scale="e8m0")  # OCP MX v1.0, section 5.2

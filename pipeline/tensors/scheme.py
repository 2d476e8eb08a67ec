"""What the bytes of a quantized tensor mean: enough to decode them, nothing about how they were made."""

from dataclasses import dataclass

from pipeline.errors import ConfigError, did_you_mean

# Bits of each element encoding. OCP Microscaling Formats (MX) v1.0, section 5.3.
ELEMENT_BITS = {"e2m1": 4}
SCALE_BITS = {"e8m0": 8}


@dataclass(frozen=True, slots=True)
class Scheme:
    """A block format along a tensor's last axis.

    Invariants: `shape[-1]` is a multiple of `block_elems`; `codes` is uint8 `[..., n * element_bits / 8]` and `scales`
    is uint8 `[..., n / block_elems]`; decoding needs nothing else. Two tensors with equal schemes and equal bytes hold
    equal values.

    Attributes:
        element: element encoding, a key of `ELEMENT_BITS`.
        block_elems: elements that share one scale, along the last axis.
        scale: scale encoding, a key of `SCALE_BITS`.
        packing: `low_first`: byte j holds element 2j in its low nibble and 2j+1 in its high nibble.
    """

    element: str
    block_elems: int
    scale: str
    packing: str = "low_first"

    def __post_init__(self) -> None:
        if self.element not in ELEMENT_BITS:
            raise ConfigError(f"scheme element {self.element!r} is unknown{did_you_mean(self.element, ELEMENT_BITS)}")
        if self.scale not in SCALE_BITS:
            raise ConfigError(f"scheme scale {self.scale!r} is unknown{did_you_mean(self.scale, SCALE_BITS)}")
        if self.packing != "low_first":
            raise ConfigError(f"scheme packing {self.packing!r} is unknown{did_you_mean(self.packing, ['low_first'])}")
        if self.block_elems < 1 or self.block_elems * self.element_bits % 8:
            raise ConfigError(f"scheme block_elems {self.block_elems} does not fill whole bytes")

    @property
    def element_bits(self) -> int:
        return ELEMENT_BITS[self.element]

    @property
    def bits_per_value(self) -> float:
        """Storage cost of one value, scales included (4.25 for MXFP4)."""
        return self.element_bits + SCALE_BITS[self.scale] / self.block_elems

    def problem(self, shape: tuple[int, ...]) -> str | None:
        """Why a tensor of this shape cannot be stored in this scheme, or None."""
        if not shape:
            return f"a scalar cannot be cut into blocks of {self.block_elems}"
        if shape[-1] % self.block_elems:
            return f"last dimension {shape[-1]} is not a multiple of the block of {self.block_elems}"
        return None

    def components(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Shapes of the uint8 component arrays of a tensor of logical `shape`."""
        *lead, n = shape
        return {
            "codes": (*lead, n * self.element_bits // 8),
            "scales": (*lead, n // self.block_elems),
        }


MXFP4 = Scheme(element="e2m1", block_elems=32, scale="e8m0")  # OCP MX v1.0, section 5.2

"""The number formats inside a block: what an E2M1 code and an E8M0 byte are worth.

Constants only, so that every backend and every op reads them from one place; how values become codes is the business
of the `quantize` op. Sections are those of the OCP Microscaling Formats (MX) Specification v1.0.
"""

from typing import Final

# Section 5.3.3, E2M1: magnitudes of codes 0..7; code | 8 is the negative, and 8 is -0.
E2M1_MAGNITUDES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_MAX: Final = 6.0
# Halfway between neighbouring magnitudes: a value on boundary k lies between codes k and k + 1.
E2M1_BOUNDARIES: Final = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)

# Section 5.4.1, E8M0: a power of two with bias 127; no sign, no zero, no infinity, one NaN.
E8M0_BIAS: Final = 127
E8M0_NAN: Final = 0xFF
E8M0_MAX: Final = 0xFE

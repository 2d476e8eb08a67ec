"""Blocks that tell MXFP4 codecs apart, by name, with what they must become. Worked out by hand; used for every backend.

Each case is a block of 32 values (short lists are filled up with zeros), the scale byte by rule, and the codes of the
first values by rule, ties to even. `all` stands for every rule.
"""

from dataclasses import dataclass, field
from typing import Any

from plugins.quant.blockwise import Blockwise

RULES = ("floor", "ceil", "even", "rceil")
TIES = ("even", "zero", "away")


def mx_method(element: str = "e2m1", block_elems: int = 32, **recipe: Any) -> Blockwise:
    """Blocks as OCP MX v1.0 describes them, MXFP4 unless told otherwise."""
    return Blockwise(element, block_elems, "e8m0", **recipe)


@dataclass(frozen=True)
class Case:
    name: str
    values: list[float]
    scales: dict[str, int]
    codes: dict[str, list[int]] = field(default_factory=dict)

    @property
    def block(self) -> list[float]:
        return self.values + [0.0] * (32 - len(self.values))

    def scale(self, rule: str) -> int:
        return self.scales.get(rule, self.scales.get("all", -1))

    def expected(self, rule: str) -> list[int] | None:
        return self.codes.get(rule, self.codes.get("all"))


CASES = [
    Case("zero", [0.0], {"all": 0}, {"all": [0] * 32}),
    Case("negative zero", [-0.0, 0.0, -0.0], {"all": 0}, {"all": [8, 0, 8, 0]}),
    Case("nibble order", [1.0, 2.0, -4.0, 0.5], {"all": 127}, {"all": [2, 4, 14, 1]}),
    Case(
        "every value",
        [0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6],
        {"floor": 127, "ceil": 128, "even": 127, "rceil": 127},
        {"floor": list(range(16)), "even": list(range(16)), "rceil": list(range(16))},
    ),
    Case(
        "every tie",
        [4, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5],
        {"all": 127},
        {"all": [6, 0, 2, 2, 4, 4, 6, 8, 10, 10, 12, 12, 14]},
    ),
    Case("the tie at five", [5.0, -5.0, 6], {"floor": 127, "even": 127, "rceil": 127}, {"floor": [6, 14, 7]}),
    Case(
        "a step past every tie",
        [4, 0.251953125, 0.75390625, 1.2578125, 1.7578125, 2.515625, 3.515625],
        {"all": 127},
        {"all": [6, 1, 2, 3, 4, 5, 6]},
    ),
    Case(
        "a step before every tie",
        [4, 0.2490234375, 0.74609375, 1.2421875, 1.7421875, 2.484375, 3.484375],
        {"all": 127},
        {"all": [6, 0, 1, 2, 3, 4, 5]},
    ),
    # amax at and between the rules' own thresholds: 1.5 · 4 and 1.75 · 4.
    Case("amax 6", [6.0], {"floor": 127, "ceil": 128, "even": 127, "rceil": 127}, {"floor": [7], "ceil": [5]}),
    Case(
        "amax 6.5",
        [6.5, 3.25],
        {"floor": 127, "ceil": 128, "even": 127, "rceil": 128},
        {"floor": [7, 5], "ceil": [5, 3], "even": [7, 5], "rceil": [5, 3]},
    ),
    Case(
        "amax 7",
        [7.0, -7.0],
        {"floor": 127, "ceil": 128, "even": 128, "rceil": 128},
        {"floor": [7, 15], "ceil": [6, 14], "even": [6, 14], "rceil": [6, 14]},
    ),
    Case("just under 8", [7.96875], {"floor": 127, "ceil": 128, "even": 128, "rceil": 128}, {"floor": [7]}),
    Case("a power of two", [8.0], {"all": 128}, {"all": [6]}),
    # Exponents at both ends of bfloat16. 2^-126 is its smallest normal, 2^-133 its smallest value.
    Case("largest bfloat16", [2.0**127 * 1.9921875], {"floor": 252, "ceil": 253, "even": 253, "rceil": 253}),
    Case("smallest bfloat16", [2.0**-133], {"all": 0}, {"all": [0]}),
    Case("smallest that survives", [1.5 * 2.0**-129, 2.0**-129], {"all": 0}, {"all": [1, 0]}),
    Case("scale byte 0, in full", [4 * 2.0**-127, -(2.0**-127), 2.0**-128], {"all": 0}, {"all": [6, 10, 1]}),
    Case("scale byte 1", [4 * 2.0**-126, 2.0**-128, 1.5 * 2.0**-127], {"all": 1}, {"all": [6, 0, 2]}),
    Case("scale byte 2", [4 * 2.0**-125, 2.0**-127, 2.0**-128], {"all": 2}, {"all": [6, 0, 0]}),
    Case("all rules clamp", [3 * 2.0**-128, -(2.0**-128)], {"all": 0}, {"all": [3, 9]}),
    Case("one giant, the rest vanish", [2.0**100, 1.0, -1.0], {"all": 225}, {"all": [6, 0, 8]}),
]

# Blocks that hold something that is not a number one can code, and where it first is.
NONFINITE = {
    "NaN": ([1.0, float("nan")], 1),
    "infinity": ([float("inf")], 0),
    "negative infinity": ([0.0, 2.0, float("-inf"), float("nan")], 2),
}

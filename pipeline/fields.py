"""What a field of a dataclass says of itself to whoever makes keys (`pipeline.planning.identity`)."""

from typing import Final

NEUTRAL: Final = {"identity": "neutral"}
"""`field(metadata=NEUTRAL)`: whatever this field says, the result is the same. It is no part of a key: where something
is written or kept, where the files come from whose content counts, what only raises."""

CHOSEN: Final = {"identity": "chosen"}
"""`field(metadata=CHOSEN)`: alternatives. What was taken of them stands in the result's `made_by`, and counts alone."""

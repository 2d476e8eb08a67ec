"""docs/kernels.md: what native kernels do of every number format, as `declines` of each op says it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from pipeline.ops import Kernel
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from plugins.kernels.cases import BY_STRUCTS
from plugins.kernels.native.scheme import ELEMENTS
from plugins.models.common.cache import _SCHEMES
from tests.cases.native import kinds

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"
SHAPE: Final = (2, 3, 256)
PLAIN: Final = ("F32", "BF16", "F16")


def weights(kind: Scheme | str) -> TensorSpec:
    return TensorSpec(SHAPE, kind) if isinstance(kind, str) else TensorSpec(SHAPE, "F32", kind)


def held(kind: Scheme | str) -> TensorSpec:
    """Keys or values, as a cache holds them: a scale for each head of a token."""
    is_whole = isinstance(kind, str) or kind.is_struct
    return weights(kind if is_whole else replace(kind, block_elems=0))


COLUMNS: Final[dict[str, Callable[[Scheme | str], dict[str, Any]]]] = {
    "quantize": lambda kind: {"x": TensorSpec(SHAPE, "BF16"), "scheme": kind},
    "dequantize": lambda kind: {"q": weights(kind)},
    "matmul": lambda kind: {"w": weights(kind)},
    "moe": lambda kind: {"w_in": (weights(kind),), "w_out": weights(kind)},
    "embed": lambda kind: {"w": weights(kind)},
    "attention": lambda kind: {"k": held(kind), "v": held(kind)},
}
"""What is asked of an op with keys, values or weights that are a format."""
CACHES: Final = [TensorSpec(SHAPE, "F32", scheme) for scheme in _SCHEMES.values()] + [
    TensorSpec(SHAPE, dtype) for dtype in ("F32", "BF16")
]
"""What a model's cache may hold."""


def table() -> str:
    """The lines of the page between its headings: a row for each element, a column for each op."""
    lines = [["element", "scales", *COLUMNS]]
    for element, some in rows():
        scales = ", ".join(dict.fromkeys(s.scale for s in some if isinstance(s, Scheme))) or "–"
        lines.append([element, scales, *(cell(op, some) for op in COLUMNS)])
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def rows() -> Iterator[tuple[str, list[Scheme | str]]]:
    """(element, everything that there is of it)."""
    yield from ((name, [name]) for name in PLAIN)
    found = sorted(kinds(), key=lambda s: ELEMENTS.index(s.element))
    yield from ((element, list(some)) for element, some in groupby(found, lambda s: s.element))
    yield from ((element, [scheme]) for element, scheme in BY_STRUCTS.items())


def cell(op: str, some: list[Scheme | str]) -> str:
    if op in ("quantize", "dequantize") and isinstance(some[0], str):
        return "–"  # these are no packed formats
    if op == "attention" and not any(held(kind) in CACHES for kind in some):
        return "–"  # nor these what a cache holds
    done = [kind for kind in some if Kernel(op, ("native",)).choose(COLUMNS[op](kind)).backend is not None]
    if len(done) == len(some):
        return "yes"
    return ", ".join(sorted({str(kind.scale) for kind in done if isinstance(kind, Scheme)})) or "no"


def page(text: str) -> str:
    """The page with the table as it is now."""
    head, _, rest = text.partition("\n| element |")
    _, blank, tail = rest.partition("\n\n")
    return f"{head}\n{table()}{blank[1:]}{tail}"

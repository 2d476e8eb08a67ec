"""The named calls of quantize_by_outputs: every kind of scale, scales that cannot be taken, rows longer than what is
worked on at once. Inputs go together, and one column has none."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from pipeline.tensors.scheme import Scheme
from pipeline.testing.kernel import Case
from plugins.kernels.cases import rng_of
from plugins.kernels.gptq.cases import FORMATS as PLAIN
from plugins.kernels.gptq.cases import SEARCH, multiplied

FORMATS: dict[str, tuple[Scheme, dict[str, Any]]] = {
    name: (scheme, {"search": "mse", "search_steps": 2, **recipe} if scheme.scale == "e8m0" else {**recipe, **SEARCH})
    for name, (scheme, recipe) in PLAIN.items()
} | {
    "int8 of 64": (Scheme("int8", 64, "f32"), {"scale_rule": "amax", **SEARCH}),
    "q4_0": (Scheme("int4", 32, "f16"), {"scale_rule": "signed", **SEARCH}),
}


def call(rng: np.random.Generator, scheme: Scheme, rows: int, n: int, **recipe: Any) -> Case:
    """Of random weights and inputs; a block of the last row is 0."""
    x, hessian = multiplied(rng, rows, n)
    x[-1, : scheme.block_elems] = 0
    return Case("random", (x, hessian, scheme), recipe)


def cases() -> Iterable[Case]:
    for name, (scheme, recipe) in FORMATS.items():
        of = call(rng_of(name), scheme, 5, 192, **recipe)
        yield Case(name, of.args, of.options)
    scheme, recipe = FORMATS["int4"]
    usual = call(rng_of("usual"), scheme, 3, 128, **recipe | {"search": "none", "search_grid": ()})
    yield Case("no search", usual.args, usual.options)
    long = call(rng_of("long"), Scheme("int8", 0, "f32"), 2, 1100, scale_rule="amax", **SEARCH)
    yield Case("a row that is longer than a strip", long.args, long.options)
    half = Scheme("int8", 32, "f16")
    for name, most in (("a scale that is tried", 64000.0), ("a scale", 2.0**20)):
        far = call(rng_of(name), half, 3, 64, scale_rule="amax", **SEARCH)
        far.args[0][1, 40] = np.float32(127 * most)
        yield Case(f"{name} past float16", far.args, far.options)

"""The named calls of gptq: every kind of scale, blocks that end within those columns that are brought up to date
together, and past them. Inputs go together, and one column has none."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.testing.kernel import Case
from plugins.kernels.cases import normal, rng_of
from plugins.kernels.gptq import feedback

SEARCH = {"search": "mse", "search_grid": (0.8, 0.93, 1.07)}
NVFP4 = {"scale_rule": "amax", "second": np.float32(2.0**-11)}
FORMATS: dict[str, tuple[Scheme, dict[str, Any]]] = {
    "mxfp4": (MXFP4, {}),
    "mxfp4, searched": (MXFP4, {"search": "mse", "search_steps": 2}),
    "mxint8": (Scheme("mxint8", 32, "e8m0"), {"scale_rule": "rceil", "ties": "zero"}),
    "nvfp4": (Scheme("e2m1", 16, "e4m3", second="f32"), {**NVFP4, **SEARCH}),
    "int4": (Scheme("int4", 64, "bf16"), {"scale_rule": "half_range", **SEARCH}),
    "int3 a row": (Scheme("int3", 0, "f32"), {"scale_rule": "amax"}),
    "uint4 with zero": (Scheme("uint4", 32, "f16", zero="int"), {"scale_rule": "minmax", "zero_block": "middle"}),
    "q4_1": (Scheme("uint4", 32, "f16", zero="min_f16"), {"scale_rule": "minmax", "codes_from": "unrounded", **SEARCH}),
    "nf4": (Scheme("nf4", 64, "f32"), {"scale_rule": "amax", "ties": "down"}),
    "e4m3": (Scheme("e4m3", 48, "f32"), {"scale_rule": "amax", "quotient": "reciprocal"}),
}


def multiplied(rng: np.random.Generator, rows: int, n: int) -> tuple[Any, Any]:
    """Random weights, float32 [rows, n], and the second moments of their inputs, float32 [n, n]."""
    mixed = normal(rng, 3 * n, n) @ (np.eye(n) + 0.5 * normal(rng, n, n) / np.sqrt(n))
    mixed *= np.exp(normal(rng, n))
    mixed[:, n // 3] = 0
    x = normal(rng, rows, n) * np.float32(0.02)
    x[:, n // 2] = -0.0
    return x, (mixed.T @ mixed / len(mixed)).astype(np.float32)


def call(rng: np.random.Generator, scheme: Scheme, rows: int, n: int, ordered: bool, **recipe: Any) -> Case:
    """Of random weights and inputs."""
    x, hessian = multiplied(rng, rows, n)
    order = feedback.order_of(hessian) if ordered else None
    return Case("random", (x, feedback.factor(hessian, 0.01, order), scheme), {"order": order, **recipe})


def cases() -> Iterable[Case]:
    for name, (scheme, recipe) in FORMATS.items():
        for ordered in (True, False):
            of = call(rng_of(name), scheme, 5, 192, ordered, **recipe)
            yield Case(f"{name}{', in order of inputs' if ordered else ''}", of.args, of.options)
    far = call(rng_of("far"), Scheme("int8", 32, "f16"), 3, 64, True, scale_rule="amax")
    far.args[0][1] *= np.float32(2.0**40)
    yield Case("a scale past float16", far.args, far.options)

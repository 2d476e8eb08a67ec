"""What a call is, for whoever compares how long calls took: numbers in which encoding, and how many, as powers of two.

A number is None where it is not known yet: plans know less of a call than programs do.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from pipeline.tensors.spec import TensorSpec

Sizes = tuple[int | None, ...]
NEAR: Final = 2  # powers of two: what a call took says nothing of one that has more than four times as many of anything


def of(request: Any) -> tuple[str, Sizes] | None:
    """What is multiplied by what, and sizes; None where that is not known, or times of the op are not kept.

    Args:
        request: a `pipeline.ops.Request`.
    """
    found = OPS[request.op](request) if request.op in OPS else None
    return None if found is None else (found[0], tuple(None if n is None else power(n) for n in found[1]))


def power(n: int) -> int:
    """The power of two next to n, by ratio."""
    return 1 << round(math.log2(max(n, 1)))


def apart(asked: Sizes, measured: Sizes) -> float:
    """How far two calls lie from each other, in powers of two, of all sizes together; infinite where one of these is
    not `NEAR`. A size that is not known counts for nothing."""
    each = [abs(math.log2(a / b)) for a, b in zip(asked, measured, strict=True) if a and b]
    return math.inf if max(each, default=math.inf) > NEAR else sum(each)


def _matmul(request: Any) -> tuple[str, Sizes] | None:
    """Rows, and out and in of the weights."""
    x, w = request.get("x"), request.get("w")
    if x is None or w is None:
        return None
    return _said(x, w), (math.prod(x.shape[:-1]), *w.shape)


def _moe(request: Any) -> tuple[str, Sizes] | None:
    """Tokens, how many experts one chooses, experts, out of the first product, and in."""
    x, into, out, chosen = (request.get(name) for name in ("x", "w_in", "w_out", "chosen"))
    if x is None or not into or out is None:
        return None
    experts, _, hidden = into[0].shape
    each = None if chosen is None else chosen.shape[-1]
    return _said(x, *into, out), (math.prod(x.shape[:-1]), each, experts, sum(w.shape[1] for w in into), hidden)


def _attention(request: Any) -> tuple[str, Sizes] | None:
    """Sequences, queries, slots, how many of these a query sees, heads of queries and of keys, dims of each."""
    q, k, window = request.get("q"), request.get("k"), request.get("window")
    if q is None:
        return None
    batch, queries, heads, dims = q.shape
    if k is None:  # a cache is as activations are, unless somebody says otherwise
        return _said(q, q), (batch, queries, None, None, heads, None, dims)
    slots = k.shape[1]
    return _said(q, k), (batch, queries, slots, min(slots, window or slots), heads, k.shape[2], dims)


def _said(x: TensorSpec, *weights: TensorSpec) -> str:
    """A second scale may be stored as its reciprocal, which takes no time."""
    encodings = dict.fromkeys(w.encoding.replace("inverse_f32", "f32") for w in weights)
    return f"{x.dtype} × {', '.join(encodings)}"


OPS: Final[Mapping[str, Callable[[Any], tuple[str, Sizes] | None]]] = {
    "matmul": _matmul, "moe": _moe, "attention": _attention,
}  # fmt: skip
MANY: Final = {"matmul": 3, "moe": 5, "attention": 7}  # sizes that a call of an op has

"""The definition of quantize_by_outputs, one block after the other; sums in fp64."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs import bits
from plugins.kernels.codecs.elements import element
from plugins.kernels.dequantize.reference import value_of
from plugins.kernels.quantize.numpy import empty
from plugins.kernels.quantize.recipe import Recipe
from plugins.kernels.quantize.reference.block import Shared, candidates, code_of, refuse_unstorable
from plugins.kernels.quantize_by_outputs.given import checked
from plugins.kernels.quantize_by_outputs.search import PASSES


@dataclass(frozen=True, slots=True)
class _Option:
    """A block under a scale that is tried: what its values share, their codes, and what they lose, fp64 [size]."""

    shared: Shared
    codes: list[int]
    errors: Any


def quantize_by_outputs(x: Any, hessian: Any, scheme: Any, *, second: Any = None, **recipe: Any) -> Any:
    """See the op's docstring."""
    how, (rows, n) = checked(x, hessian, scheme, second, recipe), x.shape
    size, q, codes = scheme.block_elems or n, empty(x.shape, scheme), np.zeros((rows, n), np.uint8)
    if q.second is not None:
        q.second[...] = second
    for r in range(rows):
        blocks = np.asarray(x[r], np.float32).reshape(-1, size).tolist()
        with np.errstate(all="ignore"):
            tried = [_options(block, scheme, how, second) for block in blocks]
            taken = _taken(tried, np.asarray(hessian, np.float64))
        codes[r] = np.concatenate([option.codes for option in taken])
        q.scales[r] = [option.shared.scale for option in taken]
        if q.zeros is not None:
            q.zeros[r] = [option.shared.zero for option in taken]
    q.codes[...] = bits.pack(codes, element(scheme.element).bits)
    return q


def _options(block: list[float], scheme: Scheme, recipe: Recipe, second: Any) -> list[_Option]:
    ends, found = (min(block), max(block)), []
    tried = candidates(block, ends, scheme, recipe, second)
    assert tried is not None
    refuse_unstorable(tried[0], ends, scheme)
    for shared in tried:
        codes = [code_of(v, shared, scheme, recipe) for v in block]
        values = np.array([value_of(code, shared.total, shared.zero, scheme) for code in codes], np.float32)
        found.append(_Option(shared, codes, (values - np.array(block, np.float32)).astype(np.float64)))
    return found


def _taken(tried: list[list[_Option]], hessian: Any) -> list[_Option]:
    """Of the options of each block of a row the one that it has in the end."""
    taken, size = [options[0] for options in tried], len(tried[0][0].codes)
    h = hessian.reshape(len(tried), size, len(tried), size)
    for b in [*range(len(tried))] * PASSES:
        others = sum((h[b, :, c] @ taken[c].errors for c in range(len(tried)) if c != b), np.zeros(size))
        losses = [o.errors @ h[b, :, b] @ o.errors + 2 * o.errors @ others for o in tried[b]]
        best = 0
        for option, loss in enumerate(losses):
            best = option if loss < losses[best] else best
        taken[b] = tried[b][best]
    return taken

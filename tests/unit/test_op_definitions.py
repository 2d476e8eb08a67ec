"""Every backend of the model ops gives what the definition gives, inside jit and outside, on one corpus."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import pipeline.tensors.pytree  # noqa: F401
from pipeline.ops import Op, load
from pipeline.testing.kernel import Case
from plugins.kernels import attention, embed, matmul, moe, rms_norm, rope, softmax
from tests.cases import ops

CORPUS: list[tuple[Op, Callable[[], Iterator[Case]]]] = [
    (matmul.OP, ops.matmuls),
    (embed.OP, ops.embeds),
    (moe.OP, ops.moes),
    (attention.OP, ops.attentions),
    (softmax.OP, ops.softmaxes),
    (rms_norm.OP, ops.norms),
    (rope.OP, ops.ropes),
]
ALL = [pytest.param(op, case, id=f"{op.name}: {case.name}") for op, cases in CORPUS for case in cases()]


def close(expected: Any, given: Any, bits: int) -> None:
    """Within a few roundings of a dtype with that many fraction bits, at the size of what is compared."""
    expected, given = (np.asarray(a).astype(np.float64) for a in (expected, given))
    size = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
    np.testing.assert_allclose(given, expected, rtol=2.0**-bits * 4, atol=size * 2.0**-bits * 4)


@pytest.mark.parametrize("jitted", [True, False], ids=["jit", "eager"])
@pytest.mark.parametrize(("op", "case"), ALL)
def test_backends_give_what_the_definition_gives(op: Op, case: Case, jitted: bool) -> None:
    expected = load(op.backends["reference"])(*case.args, **case.options)
    static = {k: v for k, v in case.options.items() if not isinstance(v, np.ndarray)}
    traced = {k: v for k, v in case.options.items() if isinstance(v, np.ndarray)}
    for name in op.backends.keys() - {"reference"}:
        call = partial(load(op.backends[name]), **static)
        given = (jax.jit(call) if jitted else call)(*case.args, **traced)
        assert given.dtype == expected.dtype
        assert given.shape == expected.shape
        close(expected, given, 7 if expected.dtype.itemsize == 2 else 19)

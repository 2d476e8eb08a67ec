"""Every backend of the model ops gives what the definition gives, inside jit and outside, on one corpus."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import pipeline.tensors.pytree  # noqa: F401
from pipeline.backends import backends_of, load
from pipeline.testing.kernel import Case
from tests.cases import ops

CORPUS: list[tuple[str, Callable[[], Iterator[Case]]]] = [
    ("matmul", ops.matmuls),
    ("embed", ops.embeds),
    ("moe", ops.moes),
    ("attention", ops.attentions),
    ("softmax", ops.softmaxes),
    ("rms_norm", ops.norms),
    ("rope", ops.ropes),
]
BACKENDS = [(op, case, b) for op, cases in CORPUS for case in cases() for b in backends_of(op) if b != "reference"]
ALL = [pytest.param(op, case, backend, id=f"{op} {backend}: {case.name}") for op, case, backend in BACKENDS]
FIRST = [next(p for p in ALL if p.values[0] is op) for op, _ in CORPUS]


def given(op: str, case: Case, backend: str, jitted: bool = True) -> Any:
    """What a backend gives; arrays among the options are traced too."""
    static = {k: v for k, v in case.options.items() if not isinstance(v, np.ndarray)}
    traced = {k: v for k, v in case.options.items() if isinstance(v, np.ndarray)}
    call = partial(load(op, backend), **static)
    return (jax.jit(call) if jitted else call)(*case.args, **traced)


def check(expected: Any, found: Any) -> None:
    """Within a few roundings of the dtype, at the size of the largest value: sums have orders of their own."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    unit = 2.0 ** -(7 if expected.dtype.itemsize == 2 else 19)
    expected, found = (np.asarray(a).astype(np.float64) for a in (expected, found))
    size = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
    np.testing.assert_allclose(found, expected, rtol=unit * 4, atol=size * unit * 4)


@pytest.mark.parametrize(("op", "case", "backend"), ALL)
def test_backends_give_what_the_definition_gives(op: str, case: Case, backend: str) -> None:
    check(load(op, "reference")(*case.args, **case.options), given(op, case, backend))


@pytest.mark.parametrize(("op", "case", "backend"), FIRST)
def test_jit_is_not_needed(op: str, case: Case, backend: str) -> None:
    check(load(op, "reference")(*case.args, **case.options), given(op, case, backend, jitted=False))

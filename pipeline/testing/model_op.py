"""What every backend of a model op promises: the definition's values to a few roundings, and gradients that are right.

A backend sums in an order of its own, so results are not the reference's bit for bit, as those of codecs are
(`pipeline.testing.kernel`). What they may differ by is said once, here:

* Values: the dtype and the shape are the definition's, and no value is further off than four units, at its own size
  plus that of the largest value of the result (a sum of large terms may be small). A unit is 2^-7 where the result is
  bfloat16 or float16, 2^-19 where it is float32, or what a backend that is not exact says (`Backend.unit`). Infinities
  and NaN stand where the definition has them; a backend that is not exact may say NaN for an infinity.
* Gradients are held the same way to those of the op in float64, with units twice as large.

An op's calls, and the op as a formula that JAX differentiates in float64, are in `plugins/kernels/<op>/cases.py`: one
corpus for all backends, whoever wrote them. What a backend cannot do it declines beforehand: such cases are skipped, if
it does any case at all; one that refuses when it is called breaks the contract.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pipeline.tensors.pytree  # noqa: F401  QTensors may be traced
from pipeline.backends import DEFINITION, ROOM, about, backends_of, load, missing
from pipeline.errors import Unsupported
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import dtype_name
from pipeline.testing.kernel import Case

FLOATS = ("float32", "bfloat16")
_QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""For programs that run once, and are exact however they are compiled."""
ZERO = 1e-6  # what the largest value of a result counts as, at least
CANCELLED = 1e-4  # the same of gradients on GPUs, some of which are 0 by cancelling: terms of about 1 leave 1e-6 of it
_LAST: dict[str, Any] = {}
"""What the definition makes of the case that came last."""


class ModelOpContract:
    """Every backend of a model op on every case of its corpus, values and gradients.

        class TestFastMatMul(ModelOpContract):
            op = "matmul"
            backends = ("acme.fast_matmul",)

    `acme.fast_matmul` is a module with a function `matmul`.
    """

    op: str
    """The op under test: the name of a room under plugins/kernels."""
    backends: tuple[str, ...] = ()
    """Those under test: by default all of the room but the definition. Dotted names of your own go here."""

    def cases(self) -> Iterable[Case]:
        """The corpus; the op's, and more of your own if you like."""
        found: Iterable[Case] = _module(f"{ROOM}.{self.op}.cases").cases()
        return found

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if type(self) is ModelOpContract:
            return
        kinds: dict[str, Callable[[Case], bool]] = {
            "case": lambda case: True,
            "differentiable": lambda case: bool(Call.of(case, self.constants()).floats),
            "packed": lambda case: _packed(case) is not None,
        }
        for name in kinds.keys() & {*metafunc.fixturenames}:
            chosen = [c for c in self.cases() if kinds[name](c)]
            metafunc.parametrize(name, [pytest.param(c, id=c.name) for c in chosen])
        if "backend" in metafunc.fixturenames:
            every = [name for name in backends_of(self.op) if name != DEFINITION]
            metafunc.parametrize("backend", self.backends or every)

    def constants(self) -> tuple[int, ...]:
        """Positions of float arguments that have no gradient, such as frequencies."""
        return getattr(_module(f"{ROOM}.{self.op}.cases"), "CONSTANTS", ())

    def test_gives_what_the_definition_gives(self, backend: str, case: Case) -> None:
        self.skip_declined(backend, case)
        found = _called(load(self.op, backend), case, jitted=True)
        self.held_to(backend, case, found)

    def held_to(self, backend: str, case: Case, found: Any) -> None:
        """The definition's result, to what the backend says of itself (`Backend.unit`)."""
        expected = load(self.op, DEFINITION)(*case.args, **case.options)
        assert found.dtype == expected.dtype, f"{found.dtype} is not {expected.dtype}"
        if about(backend).unit:
            expected = np.where(np.isinf(expected) & np.isnan(found), found, expected)
        agree(expected, found, unit=max(unit_of(expected.dtype), about(backend).unit))

    def test_does_something_and_needs_no_jit(self, backend: str) -> None:
        """The first case that it does, op by op; and what it is given stays as it is."""
        self.skip_elsewhere(backend)
        for case in self.cases():
            if self.declined(backend, case):
                continue
            before = _bytes(case)
            found = _called(load(self.op, backend), case, jitted=False)
            assert _bytes(case) == before, f"{backend} writes into its arguments"
            return self.held_to(backend, case, found)
        raise AssertionError(f"{backend} does no case of {self.op}")

    def declined(self, backend: str, case: Case) -> str:
        """Why a backend leaves a case to others, which it says beforehand; empty when it does not."""
        return Kernel(self.op, (backend,), jax.default_backend()).resolve(*case.args, **case.options).reasons

    def skip_elsewhere(self, backend: str) -> None:
        """There is nothing to test of a backend for other devices than this one, or of what is not installed."""
        platforms, here = about(backend).platforms, jax.default_backend()
        if platforms is not None and here not in platforms:
            pytest.skip(f"{backend} runs on {', '.join(platforms)}, not on {here}")
        if why := missing(backend):
            pytest.skip(why)

    def skip_declined(self, backend: str, case: Case) -> None:
        if reasons := self.declined(backend, case):
            pytest.skip(f"{backend} declines this: {reasons}")

    def test_gradients_are_those_of_float64(self, backend: str, differentiable: Case) -> None:
        self.skip_declined(backend, differentiable)
        call = Call.of(differentiable, self.constants())
        reference, direction, expected = self._in_float64(differentiable, call)

        def loss(f: Callable[..., Any], floats: list[Any]) -> Any:
            return (call.with_floats(f, floats).astype(jnp.float32) * jnp.asarray(direction, jnp.float32)).sum()

        found = jax.jit(jax.grad(partial(loss, load(self.op, backend))))(call.floats)
        for want, got, given in zip(expected, found, call.floats, strict=True):
            assert got.dtype == given.dtype, f"the gradient of a {given.dtype} is {got.dtype}"
            least = CANCELLED if jax.default_backend() == "gpu" else ZERO
            agree(want, got, unit=2 * max(unit_of(given.dtype), unit_of(reference.dtype)), least=least)

    def _in_float64(self, case: Case, call: "Call") -> tuple[Any, Any, list[Any]]:
        """The definition's result, a direction, and the gradients along it; of a case once, as its backends come one
        after the other."""
        if _LAST.get("case") is not case:
            reference = load(self.op, DEFINITION)(*case.args, **case.options)
            direction = np.random.default_rng(0).standard_normal(reference.shape).astype(reference.dtype)
            formula = _module(f"{ROOM}.{self.op}.cases").in_float64

            def both(floats: list[Any], direction: Any) -> Any:
                y, pull = jax.vjp(partial(call.wide, formula), floats)
                return y, pull(direction)[0]

            with jax.enable_x64(True):
                wide = [np.asarray(f).astype(np.float64) for f in call.floats]
                y, found = jax.jit(both, compiler_options=_QUICKLY)(wide, direction.astype(np.float64))
                agree(np.asarray(y), reference, unit=2 * unit_of(reference.dtype))
                _LAST.update(case=case, found=(reference, direction, [np.asarray(g) for g in found]))
        kept: tuple[Any, Any, list[Any]] = _LAST["found"]
        return kept

    def test_packed_weights_have_no_gradient(self, backend: str, packed: Case) -> None:
        """An error where scales are floats: JAX would say 0. Of integers it says itself that there is none."""
        self.skip_declined(backend, packed)
        at = _packed(packed)
        assert at is not None

        def loss(f: Callable[..., Any], q: Any) -> Any:
            args = (*packed.args[:at], q, *packed.args[at + 1 :])
            return _called(f, Case(packed.name, args, packed.options), jitted=True).astype(jnp.float32).sum()

        with pytest.raises(Unsupported):
            jax.grad(partial(loss, load(self.op, backend)), allow_int=True)(packed.args[at])


def agree(expected: Any, found: Any, unit: float | None = None, least: float = ZERO) -> None:
    """Fail unless two results are the same to a few roundings, as the head of this module says.

    Args:
        expected: what a result is held to.
        found: of the same shape; of the same dtype too, unless `unit` says that `expected` is wider on purpose.
        unit: by default that of the dtype.
        least: the largest value counts as this much at least, where all is about 0.
    """
    assert unit is not None or found.dtype == expected.dtype, f"{found.dtype} is not {expected.dtype}"
    assert found.shape == expected.shape, f"{found.shape} is not {expected.shape}"
    most = 4 * (unit_of(expected.dtype) if unit is None else unit)
    expected, found = (np.asarray(a).astype(np.float64) for a in (expected, found))
    size = max(np.abs(expected[np.isfinite(expected)]).max(initial=0.0), least)
    np.testing.assert_allclose(found, expected, rtol=most, atol=most * size)


def unit_of(dtype: Any) -> float:
    """What a rounding of sums is worth in a result of this dtype."""
    return 2.0**-7 if dtype.itemsize == 2 else 2.0**-19


@dataclass(frozen=True)
class Call:
    """A case as a function of the float arrays in it; those among its options count."""

    floats: list[Any]
    leaves: list[Any]
    at: list[int]
    tree: Any
    static: Mapping[str, Any]

    @classmethod
    def of(cls, case: Case, constants: tuple[int, ...]) -> "Call":
        arrays = {k: v for k, v in case.options.items() if isinstance(v, np.ndarray)}
        static = {k: v for k, v in case.options.items() if k not in arrays}
        leaves, tree = jax.tree.flatten((case.args, arrays), is_leaf=lambda leaf: isinstance(leaf, QTensor))
        fixed = [case.args[i] for i in constants]
        at = [i for i, leaf in enumerate(leaves) if _is_float(leaf) and not any(leaf is f for f in fixed)]
        return cls([leaves[i] for i in at], leaves, at, tree, static)

    def with_floats(self, f: Callable[..., Any], floats: list[Any], others: list[Any] | None = None) -> Any:
        """The call with other float arrays; `others` are all leaves, by default the case's."""
        filled = list(self.leaves if others is None else others)
        for i, value in zip(self.at, floats, strict=True):
            filled[i] = value
        args, options = jax.tree.unflatten(self.tree, filled)
        return f(*args, **options, **self.static)

    def wide(self, f: Callable[..., Any], floats: list[Any]) -> Any:
        """The call in float64, with packed tensors as the values that the op takes them for."""
        dtype = dtype_name(self.floats[0].dtype)
        return self.with_floats(f, floats, [_dense(leaf, dtype) for leaf in self.leaves])


def _packed(case: Case) -> int | None:
    """Which argument is a packed tensor whose scales are floats."""
    tensors = [(i, a.components.values()) for i, a in enumerate(case.args) if isinstance(a, QTensor)]
    return next((i for i, parts in tensors if any(p.dtype.kind in "fV" for p in parts)), None)


def _dense(leaf: Any, dtype: str) -> Any:
    if isinstance(leaf, QTensor):
        leaf = load("dequantize", "numpy")(leaf, dtype)
    return leaf.astype(np.float64) if _is_float(leaf) else leaf


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype.name in FLOATS


def _called(f: Callable[..., Any], case: Case, *, jitted: bool) -> Any:
    """What a function gives; arrays among the options are traced too."""
    static = {k: v for k, v in case.options.items() if not isinstance(v, np.ndarray)}
    traced = {k: v for k, v in case.options.items() if isinstance(v, np.ndarray)}
    call = partial(f, **static)
    return (jax.jit(call) if jitted else call)(*case.args, **traced)


def _bytes(case: Case) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((case.args, dict(case.options)))]


def _module(name: str) -> Any:
    return import_module(name)

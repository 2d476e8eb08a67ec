"""What every backend of an op promises: what the reference gives, bit for bit, on named cases."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from pipeline.backends import DEFINITION, backends_of, load
from pipeline.errors import Unsupported, WeightmillError
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.testing.memory import same


@dataclass(frozen=True)
class Case:
    """One call of an op.

    Attributes:
        name: says what is special about it.
        args: positional arguments.
        options: keyword arguments.
    """

    name: str
    args: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


class KernelContract:
    """Every backend of `op` on every case: the reference's result bit for bit, or its error at the same place.

    What a backend cannot do it declines beforehand; a backend that refuses when it is called breaks the contract.
    Statistics (floats of a dataclass that is no tensor) are compared to `rtol`, because sums depend on their order.
    """

    rtol = 1e-6

    def op(self) -> str:
        """The op under test: the name of a room under plugins/kernels."""
        raise NotImplementedError

    def backends(self) -> Iterable[str]:
        """Those under test: by default all that the room holds. Dotted names of your own go here."""
        return backends_of(self.op())

    def cases(self) -> Iterable[Case]:
        """The corpus; one for all backends."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if type(self) is KernelContract:
            return
        if "case" in metafunc.fixturenames:
            metafunc.parametrize("case", [pytest.param(c, id=c.name) for c in self.cases()])
        if "backend" in metafunc.fixturenames:
            metafunc.parametrize("backend", list(self.backends()))

    def test_is_a_backend(self, backend: str) -> None:
        assert callable(load(self.op(), backend))
        assert Kernel(self.op(), (backend,)).backends == (backend,)

    def test_gives_what_the_reference_gives(self, backend: str, case: Case) -> None:
        expected = outcome(self.op(), DEFINITION, case)
        given = self._undeclined(backend, case)
        assert not isinstance(expected, Unsupported), "the reference must do everything"
        wrong = difference(expected, given, self.rtol)
        assert wrong is None, f"{backend}: {wrong}"

    def test_leaves_its_input_alone(self, backend: str, case: Case) -> None:
        before = [_bytes(a) for a in case.args]
        self._undeclined(backend, case)
        assert [_bytes(a) for a in case.args] == before, f"{backend} writes into its arguments"

    def test_memory_order_does_not_matter(self, backend: str, case: Case) -> None:
        contiguous = self._undeclined(backend, case)
        args = tuple(_strided(a) for a in case.args)
        strided = self._undeclined(backend, Case(case.name, args, case.options))
        wrong = difference(contiguous, strided, self.rtol)
        assert wrong is None, f"{backend}, given a strided array: {wrong}"

    def _undeclined(self, backend: str, case: Case) -> Any:
        """What a backend gives that has not declined; skips when it has, and fails when it refuses all the same."""
        choice = Kernel(self.op(), (backend,)).resolve(*case.args, **case.options)
        if choice.backend is None:
            assert backend != DEFINITION, f"the reference must do everything, and declines ({choice.reasons})"
            pytest.skip(f"{backend} declines this: {choice.reasons}")
        given = outcome(self.op(), backend, case)
        if isinstance(given, Unsupported):
            pytest.fail(f"{backend} refuses ({given.reason}) what it did not decline: say so in `declines`")
        return given


def outcome(op: str, backend: str, case: Case) -> Any:
    """The result of a call, or the error that is its answer."""
    try:
        return load(op, backend)(*case.args, **case.options)
    except (WeightmillError, Unsupported) as why:
        return why


def difference(a: Any, b: Any, rtol: float) -> str | None:
    """How the results of two backends differ, or None."""
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return next((d for x, y in zip(a, b, strict=True) if (d := difference(x, y, rtol)) is not None), None)
    if isinstance(a, Exception) or isinstance(b, Exception):
        place = [str(e).partition(":")[0] for e in (a, b)]  # "flat index 96"; what follows is each backend's own
        return None if type(a) is type(b) and place[0] == place[1] else f"{a!r} is expected, got {b!r}"
    if is_dataclass(a) and not isinstance(a, QTensor) and type(a) is type(b):
        pairs = [(f.name, getattr(a, f.name), getattr(b, f.name)) for f in fields(a)]
        wrong = [
            f"{n} {y}, expected {x}" for n, x, y in pairs if not np.isclose(x, y, rtol=rtol, atol=0, equal_nan=True)
        ]
        return ", ".join(wrong) or None
    return None if same(np_array(a), np_array(b)) else f"{_show(b)} is not {_show(a)}"


def np_array(value: Any) -> Any:
    """`value` in host memory, whichever framework made it."""
    return value if isinstance(value, QTensor) else np.asarray(value)


def _show(value: Any) -> str:
    arrays = value.components if isinstance(value, QTensor) else {"": np_array(value)}
    return " ".join(f"{n} {a.dtype}{list(a.shape)} {a.reshape(-1)[:8]}" for n, a in arrays.items()).strip()


def _bytes(value: Any) -> Any:
    if isinstance(value, QTensor):
        return [a.tobytes() for a in value.components.values()]
    return value.tobytes() if isinstance(value, np.ndarray) else None


def _strided(value: Any) -> Any:
    """The same values in Fortran order, with gaps where there is one dimension only."""
    if isinstance(value, QTensor):
        return QTensor(scheme=value.scheme, **{c: _strided(a) for c, a in value.components.items()})
    if not isinstance(value, np.ndarray) or not value.ndim:
        return value
    if value.ndim > 1:
        return np.asfortranarray(value)
    gaps = np.empty(2 * value.size, value.dtype)
    gaps[::2] = value
    return gaps[::2]

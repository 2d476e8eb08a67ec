"""What tests of native kernels have in common."""

from collections.abc import Iterator

import pytest

from plugins.kernels.native import library
from tests.cases.model_runs import quick_compilation
from tests.cases.native import instruction_set


@pytest.fixture
def quick() -> Iterator[None]:
    """For many programs of one shape or another; those of the contract's cases are optimized."""
    with quick_compilation():
        yield


@pytest.fixture
def quick_at_first(thorough: bool) -> Iterator[None]:
    """For rules and shapes whose arithmetic other tests have as optimized programs; `make test-all` optimizes these."""
    with quick_compilation(not thorough):
        yield


@pytest.fixture(params=library.ISAS)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each instruction set that this machine has, forced; the others' tests are skipped."""
    return instruction_set(request.param, monkeypatch)

"""Programs of these tests run a few times each: XLA need not make them fast."""

from collections.abc import Iterator

import pytest

from tests.cases import model_runs


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with model_runs.quick_compilation():
        yield

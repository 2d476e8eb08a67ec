"""What tests of native kernels have in common."""

import pytest

from plugins.kernels.native import library


@pytest.fixture(params=library.ISAS)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each instruction set that this machine has, forced; the others' tests are skipped."""
    if library.ISAS.index(request.param) > library.core().wm_isa():
        pytest.skip(f"this machine has no {request.param}")
    monkeypatch.setenv(library.ISA, request.param)
    return str(request.param)

"""make test-gpu and make bench-gpu begin by asking for a GPU; here is none."""

import pytest

from plugins.bench import gpu


def test_where_there_is_no_gpu_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main() == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("no GPU here: JAX has cpu alone (")
    assert "Nothing was tested or measured" in said.err

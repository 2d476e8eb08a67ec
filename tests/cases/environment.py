"""What tests leave in the environment of those that follow in the same process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

PREFIX = "WEIGHTMILL_"


@contextmanager
def kept() -> Iterator[None]:
    """Fail, and set right, when variables of ours are others at the end: later tests would read folders of this one."""
    before = _ours()
    yield
    after = _ours()
    if changed := sorted(name for name in {*before, *after} if before.get(name) != after.get(name)):
        for name in changed:
            os.environ.pop(name, None)
        os.environ.update(before)
        said = f"leaves {', '.join(changed)} in the environment of tests that follow"
        pytest.fail(f"{said}; monkeypatch.setenv and tests.cases.guests.guest do not", pytrace=False)


def _ours() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}

"""A test that leaves a variable of ours in its process fails by itself, instead of others after it."""

import os

import pytest

from pipeline.config import extend
from tests.cases import environment


def test_what_is_left_fails_and_is_set_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIGHTMILL_OTHER", "as it was")
    monkeypatch.delenv(extend.VARIABLE, raising=False)

    def leaves() -> None:
        with environment.kept():
            os.environ[extend.VARIABLE] = "/of/this/test"
            del os.environ["WEIGHTMILL_OTHER"]

    with pytest.raises(pytest.fail.Exception, match=f"leaves {extend.VARIABLE}, WEIGHTMILL_OTHER in"):
        leaves()
    assert extend.VARIABLE not in os.environ
    assert os.environ["WEIGHTMILL_OTHER"] == "as it was"
    with environment.kept():
        monkeypatch.setenv("OF_OTHERS", "1")


def test_every_test_is_looked_at(request: pytest.FixtureRequest) -> None:
    assert "_own_variables" in request.fixturenames

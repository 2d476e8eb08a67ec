"""The embedded model's exports are what they were."""

from pathlib import Path

import pytest

from tests.golden import CASES, digests, expected


@pytest.mark.parametrize("case", CASES)
@pytest.mark.brief("hf-mxfp4", "hf-mxfp4-sharded", "gguf-mxfp4", "original-mxfp4", "numpy-fp16")
def test_exports_are_what_they_were(case: str, tmp_path: Path) -> None:
    assert digests(case, tmp_path) == expected()[case], "meant to change? `make golden`, and say so in CHANGELOG.md"


def test_every_case_is_expected() -> None:
    assert set(expected()) == set(CASES)

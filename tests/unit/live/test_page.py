"""docs/live.md: its Python runs, in order, and prints what the page says."""

import pytest

from tests.cases import pages


@pytest.mark.repeats  # tests/unit/live has it all
def test_every_block_runs_and_prints_what_the_page_says() -> None:
    assert pages.run("live.md") == 6

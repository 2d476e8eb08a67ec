"""docs/live.md: its Python runs, in order, and prints what the page says."""

from tests.cases import pages


def test_every_block_runs_and_prints_what_the_page_says() -> None:
    assert pages.run("live.md") == 6

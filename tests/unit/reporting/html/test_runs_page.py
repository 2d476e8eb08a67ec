"""docs/runs.md: its Python runs, in order, and prints what the page says; its notebook is executed so."""

from tests.cases import pages


def test_every_block_runs_and_prints_what_the_page_says() -> None:
    assert pages.run("runs.md") == 7

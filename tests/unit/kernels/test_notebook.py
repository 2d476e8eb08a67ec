"""docs/kernels.ipynb: its Python runs, in order, and prints what the page says; every kernel draws its roofline."""

from tests.cases import pages
from tests.cases.model_runs import quick_compilation


def test_every_block_runs_and_prints_what_the_page_says() -> None:
    shown = []
    with quick_compilation():
        assert pages.run(pages.NOTEBOOKS["kernels"], lambda: shown.append(1)) == 7
    assert len(shown) == 3

"""docs/kernels.md says what native kernels do, and they leave nothing of it to others."""

from tests.golden import kernels


def test_the_page_is_what_ops_say() -> None:
    text = kernels.PAGE.read_text()
    assert text == kernels.page(text), "`make golden` writes it anew"


def test_the_table_has_no_blank() -> None:
    cells = [cell.strip() for line in kernels.table().splitlines()[2:] for cell in line.split("|")[3:-1]]
    assert len(cells) == 6 * 26
    assert {*cells} == {"yes", "–", "f32"}

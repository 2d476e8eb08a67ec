"""README.md says which export holds which scheme as planning it does."""

from tests.cases.model_runs import QUANTIZING, STRUCTS
from tests.golden import exports

LOOKED_AT = ("int4", "mxfp4", "nf4", "nvfp4", "q4_1", "q4_k_m")  # one of each kind of row; `make golden` looks at all


def test_the_table_is_what_plans_say(thorough: bool) -> None:
    text = exports.PAGE.read_text(encoding="utf-8")
    for row in exports.rows(LOOKED_AT if thorough else LOOKED_AT[::2]):
        assert row in text, "`make golden` writes it anew"


def test_every_scheme_has_a_row_and_one_export_that_holds_it() -> None:
    table = exports.PAGE.read_text(encoding="utf-8").partition(exports.BEGIN)[2].partition(exports.END)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert [row[0] for row in rows] == [f"`{name}`" for name in [*QUANTIZING, *STRUCTS]]
    assert all({*row[1:]} <= {exports.YES, exports.GPT_OSS, exports.NO} for row in rows)
    assert all(exports.YES in row for row in rows)

"""Tables and lines fit the screen: names lose their middle, columns go by priority, numbers and paths stay whole."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pipeline.figures import Figure
from pipeline.tables import cells, shortened, table, unbroken, width, wrapped

NAMES = [f"model.layers.{i}.mlp.experts.{n}" for i in (3, 13) for n in ("gate_up_proj", "gate_up_proj_bias")]


def drawn(grid: object, columns: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=columns, force_terminal=False).print(grid)
    return file.getvalue().splitlines()


def wide(drop: tuple[str, ...] = ("in", "shape")) -> object:
    columns = ("tensors", "", "shape", "from", "in", "largest magnitude")
    rows = [(n, "×4", "8×448×160", "BF16", Figure(4_600_000, "B"), Figure(0.0625, form=".3g")) for n in NAMES]
    return table("Tensors", columns, rows, right=(1, 4, 5), drop=drop)


@pytest.mark.parametrize("columns", [30, 40, 60, 80, 100, 140])
def test_no_line_is_wider_than_the_screen(columns: int) -> None:
    assert max(map(len, drawn(wide(), columns))) <= columns


def test_with_room_everything_is_there_in_single_lines() -> None:
    lines = drawn(wide(), 140)
    assert lines[0] == "Tensors"
    assert "largest magnitude" in lines[2]
    assert all(any(name in line for line in lines) for name in NAMES)
    assert len(lines) == 5 + len(NAMES)


def test_columns_go_in_their_order_and_the_title_says_so() -> None:
    assert drawn(wide(), 72)[0] == "Tensors (without in)"
    assert drawn(wide(("shape", "in")), 72)[0] == "Tensors (without shape)"
    assert drawn(wide(), 60)[0] == "Tensors (without shape, in)"
    text = "\n".join(drawn(wide(), 72))
    assert "8×448×160" in text
    assert "MiB" not in text


def test_names_lose_their_middle_and_stay_different() -> None:
    lines = drawn(wide(("in", "shape", "from")), 70)
    shown = [re.split(r"│", line)[1].strip() for line in lines if "…" in line]
    assert len({*shown}) == len(shown) == len(NAMES)
    assert shortened("abcdefghij", 6) == "a…ghij"
    assert shortened("abc", 3) == "abc"


def test_names_that_begin_and_end_alike_keep_what_tells_them_apart_and_leave_room_for_the_rest() -> None:
    given = [(q, n) for q in ("int4", "int8", "mxfp4") for n in (256, 512)]
    names = [
        f"llama-model.source=my-llama-flow=evaluate-{q}-texts=_my-text.txt~1f272a-windows.tokens={n}" for q, n in given
    ]
    rows = [(n, "complete", "97.502", "0.0035") for n in names]
    lines = drawn(table("Runs", ("name", "state", "perplexity", "KL"), rows, right=(2, 3), drop=("KL",)), 66)
    assert lines[0] == "Runs"  # no column is gone
    shown = [line.split("│")[1].strip() for line in lines if "complete" in line]
    assert len({*shown}) == len(names)
    assert all(name.startswith(s.partition("…")[0]) for name, s in zip(names, shown, strict=True))
    assert max(map(len, lines)) <= 66


def test_names_in_the_lines_of_a_cell_lose_their_middle_too() -> None:
    names = [f"model.layers.*.self_attn.{n}_proj.weight" for n in "qk"]
    rows = [("the same values in another encoding", "211", "\n".join([*names, "and 6 more of them"]))]
    shown = "\n".join(drawn(table("First and second", ("", "count", "which"), rows, right=[1]), 78))
    assert shown.count("_proj.weight │") == 2
    assert shown.count("│ model.") == 2
    assert "and 6 more" in shown


def test_numbers_are_never_folded() -> None:
    for columns in range(20, 100):
        lines = drawn(wide(()), columns)
        for line in lines:
            assert not re.search(r"\d +│ *$", line) or "0.0625" in line or "×4" in line
        assert not any(re.fullmatch(r"[│ ]*(MiB|KiB)[│ ]*", line) for line in lines)


def test_text_folds_between_words_and_nothing_of_it_is_lost() -> None:
    said = "reads 10.7 MiB in 10 files, and what is longer than that"
    [_, *lines] = drawn(table("t", ("", ""), [("why", said), ("then", "x" * 50)]), 40)
    words = " ".join(" ".join(line.strip("│ ").split("│")[-1].split()) for line in lines)
    assert "10.7 MiB" in words
    assert words.replace(" ", "").count("x") + words.count("…") >= 20
    for word in said.split():
        assert word in words


def test_lines_keep_numbers_with_their_units_and_paths_whole() -> None:
    said = f"peak memory 978.2 MiB of 17.9 GiB: {unbroken('/a path/with spaces and more')}"
    for columns in range(10, 90):
        lines = wrapped(said, columns)
        assert " ".join(lines).split() == said.replace("\ue000", " ").split()
        assert any("/a path/with spaces and more" in line for line in lines)
        assert not any(line.endswith(("978.2", "17.9")) for line in lines)
    assert wrapped("a b c", 3, indent="  ") == ["a b", "  c"]


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8"), max_size=60), st.text("abc._/ ", max_size=60),
            st.floats(allow_nan=False, width=32),
        ),
        min_size=1, max_size=6,
    ),
    st.integers(40, 120),
)  # fmt: skip
def test_any_table_fits(rows: list[tuple[str, str, float]], columns: int) -> None:
    given_rows = [(a, b, Figure(c, "s", ".3g")) for a, b, c in rows]
    for line in drawn(table("Any", ("name", "what it is", "how long"), given_rows, right=[2]), columns):
        assert cells(line) <= columns


def test_the_width_is_what_columns_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert width() == 80
    monkeypatch.delenv("COLUMNS")
    assert width() is None  # the stdout of tests is no terminal


def test_a_notebook_gets_all_of_it() -> None:
    html = wide().html  # type: ignore[attr-defined]
    assert html.count("<tr>") == 1 + len(NAMES)
    assert NAMES[0] in html
    assert "<b>x" not in table("t", ("a",), [("<b>x",)]).html

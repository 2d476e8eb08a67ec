"""Stop strings, whatever pieces the text comes in."""

from hypothesis import given
from hypothesis import strategies as st

from plugins.engine.stopping import StopText

LETTERS = "abc"  # few, so that stops happen, overlap and nearly happen
PIECES = st.lists(st.text(LETTERS, max_size=4), max_size=12)
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3)


def shown(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    s = StopText(stops)
    found = [s.push(p) for p in pieces]
    return [*found, s.end()], s.stopped


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    """By definition: read letter by letter until what was read ends with a stop string; the longest one goes."""
    for n in range(1, len(text) + 1):
        if ending := [s for s in stops if text[:n].endswith(s)]:
            return text[: n - max(map(len, ending))], True
    return text, False


@given(PIECES, STOPS)
def test_text_ends_where_the_first_stop_string_begins(pieces: list[str], stops: list[str]) -> None:
    found, stopped = shown(pieces, stops)
    assert ("".join(found), stopped) == expected("".join(pieces), stops)


@given(PIECES, STOPS)
def test_what_was_shown_is_never_taken_back(pieces: list[str], stops: list[str]) -> None:
    """After every piece, what is shown begins the final text, and nothing is held that cannot become a stop string."""
    final, _ = expected("".join(pieces), stops)
    s, so_far, text = StopText(stops), "", ""
    for piece in pieces:
        so_far, text = so_far + s.push(piece), text + piece
        assert final.startswith(so_far)
        if not s.stopped:
            held = text[len(so_far) :]
            assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)

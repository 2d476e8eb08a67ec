"""Progress is a line that fits 80 columns; what was done before, and what is done once, count for no rate."""

import io
import time
from typing import Any

import pytest

from pipeline.reporting.progress import Progressing, _InPlace, _Lines
from pipeline.running import text_stream
from pipeline.running.progress import Progress
from pipeline.units import show_progress


def lines(progress: Progress, amounts: list[float], monkeypatch: pytest.MonkeyPatch, seconds: float = 1.0) -> list[str]:
    """What is said when every amount takes so long."""
    said: list[str] = []
    now = time.perf_counter()
    with text_stream.to(print, said.append):
        for amount in amounts:
            now += seconds
            monkeypatch.setattr("pipeline.running.progress.time.perf_counter", lambda now=now: now)
            progress.add(amount)
    return said


def test_a_line_says_how_much_how_fast_and_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    said = lines(Progress("scoring", 8160, "tokens"), [2040] * 4, monkeypatch)
    assert said[1].startswith("scoring: 4,080 of 8,160 tokens · 2,0")
    assert said[1].endswith("/s · 2.0 s left")
    assert all(len(line) <= 80 for line in said)


def test_what_was_there_and_what_is_done_once_count_for_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    resumed = Progress("a", 1000, "tokens", done=500)
    assert "600 of 1,000 tokens · 100/s · 4.0 s left" in lines(resumed, [100], monkeypatch)[0]
    monkeypatch.undo()
    compiled = Progress("b", 1000, "tokens")
    compiled.aside(8.0)
    assert "1,000 tokens · 100/s" in lines(compiled, [200], monkeypatch, 10.0)[0]


def test_nothing_is_said_of_a_moment() -> None:
    said: list[str] = []
    with text_stream.to(print, said.append):
        Progress("a", 10, "layers").add(1)
    assert said == []


def test_slow_things_and_bytes() -> None:
    assert show_progress("layers", 3, 30, "layers", 0.25) == "layers: 3 of 30 layers · 4 s each · 1 min 48 s left"
    assert show_progress("", 1 << 20, 1 << 30, "B", 1 << 20) == "1.0 MiB of 1.0 GiB · 1.0 MiB/s · 17 min 3 s left"
    assert show_progress("a", 0, 5, "layers", 0.0) == "a: 0 of 5 layers · 0/s"


def test_a_line_with_a_long_name_has_80_columns_and_all_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a log too, which nobody else would cut."""
    found = lines(Progress(f"reading {'deep/' * 40}model.safetensors", 1 << 40, "B"), [1 << 30], monkeypatch, 9)
    assert len(found[0]) <= 80
    assert found[0].startswith("reading ")
    assert "model.safetensors: " in found[0]
    assert " left" in found[0]


@pytest.mark.parametrize("shown", [_Lines(every_s=-1.0), _InPlace(io.StringIO())])
def test_what_stays_is_folded_and_paths_are_whole(shown: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = f"/{'deep/' * 30}run"
    shown.say(f"[1/3] {'quant=mxfp4 ' * 9}: 4.1 bits a weight, 3.0 MiB, perplexity 70.860, 2.0 s: {path}")
    shown.show("x" * 300)
    file = getattr(shown, "_file", None)
    found = (file.getvalue() if file else capsys.readouterr().err).splitlines()
    assert all(len(one.replace("\r\x1b[2K\r", "")) <= 80 for one in found if path not in one)
    assert any(one.strip() == path for one in found)


class Screen(io.StringIO):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns


def test_one_line_is_drawn_again_and_again_and_gone_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.reporting.progress._columns", lambda file: 80)
    monkeypatch.setattr("pipeline.reporting.progress.DRAWN_S", 0.0)
    file = Screen(80)
    shown: Any = _InPlace(file)
    events = Progressing(shown).events
    events.total(100 << 20, 10)
    events.chunk("export.model.layers.0.mlp.experts.gate_up_proj." * 3, 10 << 20, False)
    events.live("x" * 300)
    events.say("said")
    events.live("compiling score")
    events.text("The state")
    shown.clear()
    parts = file.getvalue().split("\r\x1b[2K\r")
    assert parts[1].startswith("10.0 MiB of 100.0 MiB · ")
    assert " left · export" in parts[1]  # the label is shortened, and no number
    assert parts[1].count("…") == 1
    assert all(len(part.split("\n")[0]) < 80 for part in parts)
    assert parts[3:] == ["said\n", "compiling score", "The state"]
    assert file.getvalue().endswith("The state")


def test_chunks_of_an_earlier_try_count_for_no_rate(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    shown = _Lines(every_s=-1.0)
    progress = Progressing(shown)
    now = time.monotonic()
    progress.events.total(100 << 20, 10)
    monkeypatch.setattr("pipeline.reporting.progress.time.monotonic", lambda: now + 2)
    progress.events.chunk("a", 60 << 20, True)
    progress.events.chunk("b", 20 << 20, False)
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("60.0 MiB of 100.0 MiB · 0 B/s")
    assert last.startswith("80.0 MiB of 100.0 MiB · 10.0 MiB/s · 2")

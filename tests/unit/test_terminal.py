"""What reaches the terminal steers nothing, and what happens to the terminal stops nothing."""

import errno
import io
import os
import sys
import threading
import unicodedata
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pipeline.errors import PlanError, Problem
from pipeline.reporting import console, progress
from pipeline.reporting.manifest import Report
from pipeline.reporting.tables import tables
from pipeline.tables import table
from pipeline.terminal import _Descriptor, _Stream, line, safe

EVIL = "\x1b[2J\x1b]0;title\x07\r\x9b31m\u202egnp\u2066\u061c\x00\x7f\u2028[red]x[/red]:smile:\udc80"


def drawn(*renderables: object) -> str:
    file = io.StringIO()
    for item in renderables:
        Console(file=file, width=300, force_terminal=False).print(item)
    return file.getvalue()


def harmless(text: str) -> bool:
    """No control but line ends and tabs, no bidi control, nothing that is no character."""
    return not any(
        (unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") and c not in "\n\t")
        or unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
        for c in text
    )


def test_what_steers_is_shown_as_its_escape() -> None:
    assert safe("\x1b[31m\x9b\u202e\r\n\tü→") == "\\x1b[31m\\x9b\\u202e\\r\n\tü→"
    assert line("a\nb\t") == "a\\nb\\t"
    assert harmless(safe(EVIL))


@given(st.text(st.characters()))
def test_any_text_is_harmless(text: str) -> None:
    assert harmless(safe(text))
    assert len(line(text).splitlines()) <= 1
    safe(text).encode()


def test_a_table_takes_nothing_for_markup() -> None:
    text = drawn(table(EVIL, ("name", EVIL), [(EVIL, 3)], right=(1,)))
    assert harmless(text)
    assert text.count("[red]x[/red]:smile:") == 3  # title, column, cell


def test_everything_a_report_shows_is_harmless() -> None:
    row = {"name": EVIL, "tensors": 1, "count": 1, "max_abs": 1.0, "rmse": 1.0, "sq_error": 1.0, "sq_signal": 2.0}
    stage = {"name": EVIL, "tensors": 1, "nbytes_in": 1, "nbytes_out": 1, "seconds": 1.0}
    results = {
        EVIL: {EVIL: [EVIL]},
        "tables": {"tables": [{"title": EVIL, "columns": [EVIL], "rows": [[EVIL]]}]},
        "text": EVIL,
    }
    report = Report(
        run="r", command=[], started=0.0, seconds=0.0, inputs=[], outputs=[], stages=[stage], errors=[row], tensors=[],
        nbytes_bf16=2, nbytes_in=1, nbytes_out=1, chunks={"all": 1, "reused": 0}, backends=[], versions={},
        results=results,
    )  # fmt: skip
    assert harmless(drawn(*tables(report)))


def test_errors_progress_and_streamed_text_are_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    console.error(PlanError([Problem(EVIL, EVIL), Problem("b", "c")]))
    console.stream(f"{EVIL}\n")
    console.out(EVIL)
    for shown in (progress._Lines(every_s=-1.0), progress._InPlace(sys.stderr, erase="")):
        events = progress.Progressing(shown).events
        events.chunk(EVIL, 1, False)
        events.say(EVIL)
        events.text(EVIL)
        shown.clear()
    said = capsys.readouterr()
    assert harmless(said.out + said.err.replace("\r", ""))  # a line goes back to its beginning
    assert said.err.count("\\x1b[2J") >= 5


def test_mermaid_takes_nothing_for_its_own() -> None:
    def node(name: str, **inputs: str) -> SimpleNamespace:
        return SimpleNamespace(name=name, inputs=inputs, gives=SimpleNamespace(__name__="A[B]"), work=None, result=None)

    nodes = {n.name: n for n in (node("load"), node("end", a="load"), node('x"] --> y["', a="end"))}
    text = console.mermaid(SimpleNamespace(nodes=nodes))
    assert text.splitlines() == [
        "flowchart LR",
        '    load["load"]',
        '    stage1["end"]',
        '    stage2["x#34;#93; --#62; y#91;#34;"]',
        '    load -->|"A#91;B#93;"| stage1',
        '    stage1 -->|"A#91;B#93;"| stage2',
    ]


def test_a_reader_that_left_is_noticed_and_not_raised() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stream = _Stream(writing, None)
    for _ in range(3):
        print("x" * 100_000, file=stream, flush=True)
    assert stream.descriptor.lost is not None
    assert stream.descriptor.lost.errno == errno.EPIPE
    os.close(writing)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_noticed_and_not_raised() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    stream = _Stream(fd, None)
    print("x", file=stream, flush=True)
    assert stream.descriptor.lost is not None
    assert stream.descriptor.lost.errno == errno.ENOSPC
    os.close(fd)


def test_a_pipe_that_does_not_block_gets_everything() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    data = bytes(range(256)) * 4096  # 1 MiB, more than any pipe holds
    got = bytearray()
    reader = threading.Thread(target=lambda: [got.extend(part) for part in iter(lambda: os.read(reading, 65536), b"")])
    reader.start()
    descriptor = _Descriptor(writing)
    assert descriptor.write(data) == len(data)
    os.close(writing)
    reader.join()
    os.close(reading)
    assert got == data
    assert descriptor.lost is None


def test_ascii_gets_escapes() -> None:
    reading, writing = os.pipe()
    print("2 × 3 → ü", file=_Stream(writing, SimpleNamespace(encoding="ascii")), flush=True)
    os.close(writing)
    assert os.read(reading, 100) == b"2 \\xd7 3 \\u2192 \\xfc\n"
    os.close(reading)

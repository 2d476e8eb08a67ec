"""A chat: what is kept from turn to turn, what commands change, and what goes to which stream."""

import io
import json
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.engine import Reply
from pipeline.errors import ConfigError, StageError
from pipeline.running.answer import speed
from pipeline.running.chat import Chat, chat
from pipeline.running.interrupts import Interrupts
from pipeline.running.typed import Typed
from pipeline.waiting import Waiting
from plugins.engine.options import Sampling

TIMINGS = SimpleNamespace(prompt_tokens=3, new_tokens=2, decode_rate=9.0, prefill=0.1, compile=0.0)


@dataclass
class Talk:
    """A model that says what it was asked, and how."""

    chat: bool = True
    channels: bool = False
    room: int | None = 100
    asked: list[Any] = field(default_factory=list)
    fails: str | None = None
    left_out: int = 0
    silent: bool = False

    def reply(
        self, messages: Sequence[Mapping[str, Any]], sampling: Any, *, on_text: Callable[[str, str], None],
        wanted: Callable[[], bool], **variables: Any,
    ) -> Reply:  # fmt: skip
        self.asked.append(([dict(m) for m in messages], sampling, variables))
        if self.fails:
            raise ConfigError(self.fails)
        if self.silent:
            return Reply("", "interrupted", TIMINGS, 5)
        if self.channels:
            on_text("analysis", "hm \x1b[2J")
            on_text("final", "well")
            return Reply("well", "end", TIMINGS, 5, "hm")
        on_text("", f"re: {messages[-1]['content']}")
        return Reply(f"re: {messages[-1]['content']}", "length", TIMINGS, 5, left_out=self.left_out)


def talking(talk: Talk | None = None, system: str | None = None) -> tuple[Chat, Talk]:
    found = talk or Talk()
    facts = {"device_nbytes": 5, "device": "cpu"}
    model = SimpleNamespace(facts=facts)
    return Chat(model, found, Sampling(), system, Interrupts()), found  # type: ignore[arg-type]


def take(session: Chat, text: str, *, quoted: bool = False) -> bool:
    return session.take(Typed(text, quoted, 1))


def said(talk: Talk) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in talk.asked[-1][0]]


def test_what_was_said_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    session, talk = talking(system="Be brief.")
    for text in ("one", "two", "/undo", "three", "", "/retry"):
        take(session, text)
    assert said(talk) == [("system", "Be brief."), ("user", "one"), ("assistant", "re: one"), ("user", "three")]
    assert [a[1].seed for a in talk.asked] == [0, 0, 0, 1]
    out, err = capsys.readouterr()
    assert out == "re: one\nre: two\nre: three\nre: three\n"
    assert "[2 tokens, 9.0 tokens/s, cut off at /max_tokens; read 3 of 5 in 0.10 s]" in err
    take(session, "/system -")
    take(session, "/reset")
    take(session, "four")
    assert said(talk) == [("user", "four")]


def test_settings_are_set_by_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    session, talk = talking()
    for text in (
        "/temperature 0.5",
        "/top_k 7",
        '/stop ["a", "b"]',
        "/max_tokens 9",
        "/temperature hot",
        "/top_p 2",
        "x",
    ):
        take(session, text)
    assert talk.asked[0][1] == replace(Sampling(), temperature=0.5, top_k=7, stop=("a", "b"), max_tokens=9)
    err = capsys.readouterr().err
    assert "error: /temperature hot: a number is expected" in err
    assert "error: top_p=2" in err
    take(session, "/stop -")
    take(session, "/tempratur 1")
    assert "did you mean '/temperature'" in capsys.readouterr().err
    take(session, "x")
    assert talk.asked[-1][1].stop == ()


def test_a_question_that_fails_was_never_asked(capsys: pytest.CaptureFixture[str]) -> None:
    session, talk = talking()
    take(session, "one")
    talk.fails = "too long"
    take(session, "two")
    take(session, "/retry")
    talk.fails = None
    take(session, "three")
    assert said(talk) == [("user", "one"), ("assistant", "re: one"), ("user", "three")]
    assert capsys.readouterr().err.count("error: too long") == 2


def test_channels(capsys: pytest.CaptureFixture[str]) -> None:
    session, talk = talking(Talk(channels=True))
    assert {"/effort", "/thinking"} <= {*session.commands}
    for text in ("one", "/effort hgh", "/effort high", "/thinking off", "two", "/help"):
        take(session, text)
    assert talk.asked[1][0][1] == {"role": "assistant", "content": "well", "thinking": "hm"}
    assert talk.asked[1][2] == {"reasoning_effort": "high"}
    out, err = capsys.readouterr()
    assert out == "well\nwell\n"
    assert err.count("[analysis]") == 1
    assert "\x1b" not in err
    assert "did you mean 'high'" in err
    assert "/effort LEVEL" in err
    assert "\nthinking off\n" in err


def test_what_thinks_in_no_channels_has_no_commands_for_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    session, _ = talking()
    for text in ("/effort low", "/thinking on"):
        take(session, text)
        assert f"error: {text.split()[0]}: this model has no channels" in capsys.readouterr().err
    take(session, "/foo")
    err = capsys.readouterr().err
    assert "/effort" not in err
    assert "/thinking" not in err
    assert max(map(len, err.splitlines())) <= 80


def test_a_retry_that_can_only_say_the_same_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    session, _ = talking()
    take(session, "one")
    take(session, "/retry")
    assert "[temperature 0 takes the likeliest token always" in capsys.readouterr().err
    take(session, "/temperature 0.5")
    take(session, "/retry")
    assert "likeliest" not in capsys.readouterr().err


def test_an_interrupt_waits_for_the_compiler_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[Callable[[str], str]] = []

    class Line(Waiting):
        def __init__(self, what: str, note: Callable[[str], str]):
            super().__init__(what, note)
            notes.append(note)

    monkeypatch.setattr("pipeline.running.chat.Waiting", Line)
    session, _ = talking()
    take(session, "one")
    assert notes[0]("compiling step") == ""
    session._interrupts.heard = True
    assert notes[0]("compiling step") == "interrupted; the compiler ends first"
    assert notes[0]("reading") == "interrupted; again ends the chat"


def test_one_token_is_one() -> None:
    timings = SimpleNamespace(**{**vars(TIMINGS), "new_tokens": 1})
    assert speed(Reply("x", "interrupted", timings, 5)).startswith("[1 token, 9.0 tokens/s, interrupted; ")


def test_help_names_every_command_and_fits(capsys: pytest.CaptureFixture[str]) -> None:
    session, _ = talking()
    take(session, "/help")
    err = capsys.readouterr().err
    assert max(map(len, err.splitlines())) <= 80
    hidden = {"/bye", "/quit", "/help"}
    assert all(name in err for name in {*session.commands} - hidden)


def test_set_shows_and_sets(capsys: pytest.CaptureFixture[str]) -> None:
    session, talk = talking()
    take(session, "/set")
    shown = capsys.readouterr().err
    assert all(f"/{f.name} " in shown for f in fields(Sampling) if f.name != "stop_tokens")
    take(session, "/set temperature 0.5")
    take(session, "/set tempratur 1")
    assert "error: /set tempratur: there is no such setting; did you mean 'temperature'?" in capsys.readouterr().err
    take(session, " /usr/bin is what?")
    assert talk.asked[0][1].temperature == 0.5
    assert said(talk) == [("user", " /usr/bin is what?")]


def test_what_was_left_out_is_told_and_not_sent_again(capsys: pytest.CaptureFixture[str]) -> None:
    """The saved conversation has all of it."""
    session, talk = talking(system="Brief.")
    for text in ("one", "two"):
        take(session, text)
    talk.left_out = 2
    take(session, "three")
    assert "it has forgotten the oldest 2 messages" in capsys.readouterr().err
    talk.left_out = 0
    take(session, "four")
    assert [text for _, text in said(talk)] == ["Brief.", "two", "re: two", "three", "re: three", "four"]
    for _ in range(4):
        take(session, "/undo")
    take(session, "five")
    assert [text for _, text in said(talk)] == ["Brief.", "five"]


def test_an_answer_of_nothing_was_never_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C while a question is read; what was said before stays, of a /retry too."""
    session, talk = talking()
    take(session, "one")
    talk.silent = True
    take(session, "two")
    take(session, "/retry")
    talk.silent = False
    take(session, "three")
    assert said(talk) == [("user", "one"), ("assistant", "re: one"), ("user", "three")]
    assert capsys.readouterr().err.count("the question is taken back") == 2


def test_without_a_template_there_is_no_system_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    session, _ = talking(Talk(chat=False))
    assert not take(session, "/system Be brief.")
    assert "error: /system: without a chat template" in capsys.readouterr().err


def test_help_on_a_narrow_screen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    session, _ = talking(Talk(channels=True))
    take(session, "/help")
    assert max(map(len, capsys.readouterr().err.splitlines())) <= 40


def test_saved_conversations_are_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session, _ = talking(Talk(channels=True), system="Brief.")
    take(session, "one")
    take(session, f"/save {tmp_path}/talk.json")
    other, talk = talking(Talk(channels=True))
    take(other, "before")
    take(other, f"/load {tmp_path}/talk.json")
    take(other, "two")
    assert said(talk) == [("system", "Brief."), ("user", "one"), ("assistant", "well"), ("user", "two")]
    assert talk.asked[-1][0][2]["thinking"] == "hm"
    for name, text, why in (
        ("none", None, "No such file"),
        ("a zero\0byte", None, "is no path"),
        ("/dev/null", None, "not a regular file"),
        ("~nobody.has.this/x", None, "No such file"),
        ("text", "hello", "not JSON"),
        ("deep", "[" * 100_000, "nested too deeply"),
        ("surrogate", '[{"role": "user", "content": "\\ud800"}]', "lone surrogate"),
        ("number", "3", "is expected, as /save writes it"),
        ("order", '[{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]', "in turn"),
        ("kind", '[{"role": "user", "content": 3}, {"role": "assistant", "content": "y"}]', "content 3: a text"),
    ):
        if text is not None:
            (tmp_path / name).write_text(text)
        assert not take(other, f"/load {name if name.startswith('~') else tmp_path / name}")
        assert why in capsys.readouterr().err
    take(other, "three")
    assert len(talk.asked[-1][0]) == 6


def test_saved_conversations_replace_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session, _ = talking(system="Brief.")
    take(session, "one")
    file = tmp_path / "talk.json"
    take(session, f"/save {file}")
    take(session, f"/save {file}")
    assert [m["role"] for m in json.loads(file.read_text())["messages"]] == ["system", "user", "assistant"]
    assert f"error: {file}: File exists" in capsys.readouterr().err


@pytest.mark.parametrize(("file", "why"), [("~nobody.has.this/x", "No such file"), ("a\0b", "is no path")])
def test_saved_nowhere(
    file: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    session, _ = talking()
    assert not take(session, f"/save {file}")
    assert why in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_saved_whole_or_not_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A disk that is full after a few bytes leaves nothing behind; once there is room, it is written."""
    session, _ = talking(system="x" * 100_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        assert not take(session, f"/save {tmp_path}/talk.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "talk.json: File too large" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
    assert take(session, f"/save {tmp_path}/talk.json")


def test_a_system_prompt_needs_a_template() -> None:
    model = SimpleNamespace(conversation=lambda chat: Talk(chat=False), facts={})
    with pytest.raises(ConfigError, match="system: without a chat template"):
        chat(model, Sampling(), template=None, system="Be brief.")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("/stop [1]", "stop: 1 is no text"),
        ("/seed 99999999999999999999", "seed=99999999999999999999: from -2^63"),
        ("/top_k 99999999999", "top_k=99999999999: 0 (all) or more, below 2^31"),
    ],
)
def test_a_setting_that_would_end_the_next_answer_is_refused(
    typed: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    session, talk = talking()
    assert not take(session, typed)
    assert f"error: {why}" in capsys.readouterr().err
    assert take(session, "x")
    assert talk.asked[-1][1] == Sampling()


def test_a_retry_after_the_largest_seed() -> None:
    session, talk = talking()
    for text in ("one", f"/seed {2**63 - 1}", "/retry", "/retry"):
        assert take(session, text)
    assert [a[1].seed for a in talk.asked] == [0, -(2**63), -(2**63) + 1]


def piped(text: bytes, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a model was asked over a pipe.

    Raises:
        StageError: as `chat`.
    """
    talk = Talk()
    facts = {"device_nbytes": 5, "device": "cpu"}
    model = SimpleNamespace(conversation=lambda chat: talk, facts=facts, generation={"do_sample": True, "top_k": 64})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
    try:
        chat(model, Sampling(), template=None, system=None)  # type: ignore[arg-type]
    finally:
        asked = [a[0][-1]["content"] for a in talk.asked]
    return asked


def test_a_pipe_loses_no_question(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A quoted text is no command, and one that nothing closes ends with what there is."""
    given = b'one\r\n"""\n/usr/bin is\nwhat?\n"""\n/max_tokens 5\n"""and\nlast'
    assert piped(given, monkeypatch) == ["one", "/usr/bin is\nwhat?", "and\nlast"]
    said = capsys.readouterr().err
    assert 'line 7: """ has no end' in said
    assert "generation_config.json asks for sampling.temperature=1 sampling.top_k=64." in said


def test_what_fails_over_a_pipe_is_said_and_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StageError, match="not done: line 2, line 4;"):
        piped(b"one\n/usr/bin is what?\ntwo\nthr\xffee\nfour\n", monkeypatch)
    out, err = capsys.readouterr()
    assert out == "re: one\nre: two\nre: four\n"
    assert "error: line 2: there is no /usr/bin" in err
    assert "error: line 4: byte 0xff after 'thr' is no utf-8 text" in err


def test_nobody_is_answered_who_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """`weightmill chat DIR < questions | head -1`."""
    monkeypatch.setattr("pipeline.running.chat.unread", lambda: True)
    assert piped(b"one\ntwo\n", monkeypatch) == []

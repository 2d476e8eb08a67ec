"""A chat: what is kept from turn to turn, what commands change, and what goes to which stream."""

import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.engine import Reply
from pipeline.errors import ConfigError, StageError
from pipeline.running.chat import Chat, chat
from pipeline.running.typed import Typed
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

    def reply(
        self, messages: Sequence[Mapping[str, Any]], sampling: Any, *, on_text: Callable[[str, str], None],
        wanted: Callable[[], bool], **variables: Any,
    ) -> Reply:  # fmt: skip
        self.asked.append(([dict(m) for m in messages], sampling, variables))
        if self.fails:
            raise ConfigError(self.fails)
        if self.channels:
            on_text("analysis", "hm \x1b[2J")
            on_text("final", "well")
            return Reply("well", "end", TIMINGS, 5, "hm")
        on_text("", f"re: {messages[-1]['content']}")
        return Reply(f"re: {messages[-1]['content']}", "length", TIMINGS, 5)


def talking(talk: Talk | None = None, system: str | None = None) -> tuple[Chat, Talk]:
    found = talk or Talk()
    facts = {"device_nbytes": 5, "device": "cpu"}
    return Chat(SimpleNamespace(facts=facts), found, Sampling(), system), found  # type: ignore[arg-type]


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
    session, _ = talking()
    take(session, "/effort low")
    assert "no channels" in capsys.readouterr().err


def test_help_names_every_command_and_fits(capsys: pytest.CaptureFixture[str]) -> None:
    session, _ = talking()
    take(session, "/help")
    err = capsys.readouterr().err
    assert max(map(len, err.splitlines())) <= 80
    hidden = {"/bye", "/quit", "/help", "/effort", "/thinking"}
    assert all(name in err for name in {*session.commands} - hidden)


def test_saved_conversations_replace_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session, _ = talking(system="Brief.")
    take(session, "one")
    file = tmp_path / "talk.json"
    take(session, f"/save {file}")
    take(session, f"/save {file}")
    assert [m["role"] for m in json.loads(file.read_text())["messages"]] == ["system", "user", "assistant"]
    assert f"error: /save {file}: File exists" in capsys.readouterr().err


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


def test_a_retry_without_a_next_seed_forgets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    session, talk = talking()
    for text in ("one", f"/seed {2**63 - 1}", "/retry", "two"):
        take(session, text)
    assert f"error: seed={2**63}" in capsys.readouterr().err
    assert said(talk) == [("user", "one"), ("assistant", "re: one"), ("user", "two")]


def piped(text: bytes, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a model was asked over a pipe.

    Raises:
        StageError: as `chat`.
    """
    talk = Talk()
    model = SimpleNamespace(conversation=lambda chat: talk, facts={"device_nbytes": 5, "device": "cpu"})
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
    assert 'line 7: """ has no end' in capsys.readouterr().err


def test_what_fails_over_a_pipe_is_said_and_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StageError, match="not done: line 2, line 4;"):
        piped(b"one\n/usr/bin is what?\ntwo\nthr\xffee\nfour\n", monkeypatch)
    out, err = capsys.readouterr()
    assert out == "re: one\nre: two\nre: four\n"
    assert "error: line 2: there is no /usr/bin" in err
    assert "error: line 4: byte 0xff after 'thr' is no utf-8 text" in err

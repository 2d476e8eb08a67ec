"""`weightmill chat`: a conversation in a terminal, or over a pipe, with a model that is loaded once.

Answers go to stdout, everything else to stderr, so that `… chat DIR < questions > answers` has answers only. Ctrl-C
ends an answer, or takes back the line that is typed; twice during an answer it ends the program.
"""

import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from pipeline import suggested
from pipeline.engine import Conversation, Reply, Session, weights_rows
from pipeline.errors import ConfigError, StageError, WeightmillError, did_you_mean, some
from pipeline.running import saved, text_stream
from pipeline.running.answer import Out, note, speed
from pipeline.running.chat_help import COMMANDS, EFFORTS, HOW, IN_CHANNELS, folded, listed
from pipeline.running.interrupts import Interrupts
from pipeline.running.typed import Lines, Typed
from pipeline.tables import width
from pipeline.terminal import say, unread
from pipeline.waiting import Waiting

PLAIN = (
    "This checkpoint has no chat template, as those have none that were not trained to chat: what you type is "
    "continued as it is, and what is typed then goes on from there. Names of those that were often end in -Instruct, "
    "-it or -chat."
)


class Chat:
    """What was said, how it is answered, and the commands that change either."""

    def __init__(self, model: Session, talk: Conversation, sampling: Any, system: str | None, interrupts: Interrupts):
        self._model, self._talk, self._sampling, self._system = model, talk, sampling, system
        self._interrupts = interrupts
        self._said: list[dict[str, str]] = []
        self._read_from = 0  # the first of `_said` that the model still reads
        self._variables: dict[str, Any] = {}
        self._thinking = True
        self._last: Reply | None = None
        self.over = False
        self._settings = {f.name for f in fields(sampling)} - {"stop_tokens"}
        found = {n.removeprefix("_do_") for n in dir(self) if n.startswith("_do_")}
        found -= set() if talk.channels else {"effort", "thinking"}
        self.commands = tuple(f"/{name}" for name in sorted(found | self._settings))

    def take(self, typed: Typed, where: str = "") -> bool:
        """A command, or something to be answered; whether it was. What is wrong with it is said, and `where`."""
        line = typed.text
        try:
            if strange := re.search("[\udc80-\udcff]", line):
                byte = ord(strange[0]) & 0xFF
                raise ConfigError(
                    f"byte 0x{byte:02x} after {line[: strange.start()][-20:]!r} is no {sys.stdin.encoding} text"
                )
            if line.startswith("/") and not typed.quoted:
                self._command(line)
            elif line.strip():
                self._said.append({"role": "user", "content": line})
                self._answer()
        except WeightmillError as why:
            said = f"error: {where}{why}"
            say(folded(said, "    ") if width(sys.stderr) else said)
            return False
        return True

    # Answers.

    def _answer(self) -> bool:
        """Say what follows, and whether anything does; where nothing does, it was never asked."""
        out = Out(thinking=self._thinking)
        try:
            reply = self._reply(out)
        except BaseException:
            out.end()
            self._said.pop()
            raise
        out.end()
        if reply.finish == "interrupted" and not reply.text and reply.thought is None:
            self._said.pop()
            note("[interrupted before there was an answer; the question is taken back]")
            return False
        if reply.left_out:
            self._read_from += reply.left_out
            note(f"[the model reads {self._talk.room:,} tokens at most: it has forgotten the oldest "
                 f"{reply.left_out} messages; /reset forgets all]")  # fmt: skip
        thought = {} if reply.thought is None else {"thinking": reply.thought}
        self._said.append({"role": "assistant", "content": reply.text, **thought})
        self._last = reply
        note(speed(reply))
        return True

    def _reply(self, out: Out) -> Reply:
        """What the model says to all that was said, shown as it comes, and until then what it is at."""

        def heard(at: str) -> str:
            if not self._interrupts.heard:
                return ""
            return f"interrupted; {'the compiler ends first' if at.startswith('compiling') else 'again ends the chat'}"

        with (
            Waiting("reading", heard) as line,
            text_stream.to(lambda text: say(text.rstrip("\n")), line.say),
            self._interrupts.answering() as wanted,
        ):

            def show(label: str, text: str) -> None:
                if out.shows(label):
                    line.end()
                    out.show(label, text)
                else:
                    line.say("thinking")

            messages = self._messages(self._said[self._read_from :])
            return self._talk.reply(
                messages, self._sampling, on_text=show, wanted=lambda: wanted() and not unread(), **self._variables
            )

    def _messages(self, said: list[dict[str, str]]) -> list[dict[str, str]]:
        return [*([] if self._system is None else [{"role": "system", "content": self._system}]), *said]

    # Commands, each a method; what is sampled by is set by its name.

    def _command(self, line: str) -> None:
        name, _, rest = line[1:].partition(" ")
        command: Callable[[str], None] | None = getattr(self, f"_do_{name}", None)
        if command is not None:
            command(rest.strip())
        elif name in self._settings:
            self._set(name, rest.strip())
        else:
            raise ConfigError(
                f"there is no /{name}{did_you_mean(f'/{name}', self.commands, 30)}; /help says what each does, "
                "and after a space a text may begin so"
            )

    def _set(self, name: str, given: str) -> None:
        if given:
            self._sampling = replace(self._sampling, **{name: _value(name, given, getattr(self._sampling, name))})
        say(f"{name} {json.dumps(getattr(self._sampling, name))}")

    def _do_help(self, _: str) -> None:
        told = COMMANDS | (IN_CHANNELS if self._talk.channels else {})
        listed(told)
        say("\nHow tokens are chosen:")
        self._do_set("")
        say("")
        say(folded(HOW))

    def _do_set(self, given: str) -> None:
        name, _, rest = given.partition(" ")
        if not name:
            listed({f"/{n}": json.dumps(getattr(self._sampling, n)) for n in sorted(self._settings)})
        elif name in self._settings:
            self._set(name, rest.strip())
        else:
            raise ConfigError(f"/set {name}: there is no such setting{did_you_mean(name, sorted(self._settings))}")

    def _do_system(self, text: str) -> None:
        if text and not self._talk.chat:
            raise ConfigError("/system: without a chat template there is no place for it")
        if text:
            self._system = None if text == "-" else text
        say(f"system: {self._system or 'nothing'}")

    def _do_reset(self, _: str) -> None:
        self._said.clear()
        self._read_from = 0
        say("forgotten")

    _do_clear = _do_reset

    def _do_undo(self, _: str) -> None:
        if not self._said:
            raise ConfigError("/undo: nothing was said")
        question = self._said[-2]["content"]
        del self._said[-2:]
        self._read_from = min(self._read_from, len(self._said))
        say(f"forgotten: {question}")

    def _do_retry(self, _: str) -> None:
        if not self._said:
            raise ConfigError("/retry: nothing was said")
        self._sampling = replace(self._sampling, seed=self._sampling.next_seed)
        if self._sampling.greedy:
            note("[temperature 0 takes the likeliest token always, so the answer is the same; /set temperature 0.7 "
                 "gives others]")  # fmt: skip
        answer = self._said.pop()
        question = self._said[-1]
        answered = False
        try:
            answered = self._answer()
        finally:
            if not answered:
                self._said += [question, answer]

    def _do_effort(self, level: str) -> None:
        self._in_channels("effort")
        if level not in EFFORTS:
            raise ConfigError(f"/effort {level}{did_you_mean(level, EFFORTS)}")
        self._variables = {"reasoning_effort": level}
        say(f"effort {level}")

    def _do_thinking(self, given: str) -> None:
        self._in_channels("thinking")
        if given not in ("on", "off"):
            raise ConfigError(f"/thinking {given}{did_you_mean(given, ('on', 'off'))}")
        self._thinking = given == "on"
        say(f"thinking {given}")

    def _in_channels(self, command: str) -> None:
        if not self._talk.channels:
            raise ConfigError(f"/{command}: this model has no channels to think in")

    def _do_save(self, file: str) -> None:
        if not file:
            raise ConfigError("/save FILE: a file is expected")
        saved.save(file, self._messages(self._said))
        say(f"saved {file}")

    def _do_load(self, file: str) -> None:
        if not file:
            raise ConfigError("/load FILE: a file is expected")
        system, said = saved.load(file)
        if system is not None and not self._talk.chat:
            raise ConfigError(
                f"{file}: begins with a system prompt, and without a chat template there is no place for it"
            )
        self._system, self._said, self._read_from = system, said, 0
        say(f"loaded {file}: {len(said) // 2} questions and answers")

    def _do_stats(self, _: str) -> None:
        for name, value in weights_rows(self._model.facts):
            say(f"{name}: {value}")
        if self._last is not None:
            say(f"conversation: {self._last.tokens + self._last.timings.new_tokens:,} tokens" + self._of_room())
            say(speed(self._last))

    def _of_room(self) -> str:
        return f" of {self._talk.room:,}" if self._talk.room else ""

    def _do_exit(self, _: str) -> None:
        self.over = True

    _do_quit = _do_bye = _do_exit


def _value(name: str, given: str, now: Any) -> Any:
    """What was typed for a setting, of the kind that it has."""
    if isinstance(now, tuple):
        if given == "-":
            return ()
        with suppress(ValueError):
            found = json.loads(given)
            return tuple(found) if isinstance(found, list) else (str(found),)
        return (given,)
    try:
        return type(now)(given)
    except ValueError:
        kind = "a whole number" if isinstance(now, int) else "a number"
        raise ConfigError(f"/{name} {given}: {kind} is expected") from None


def chat(model: Session, sampling: Any, *, template: bool | None, system: str | None) -> None:
    """Talk until nobody says anything more.

    Args:
        sampling: how tokens are chosen, to begin with.
        template: as `Session.conversation`'s `chat`.
        system: what conversations begin with.

    Raises:
        ConfigError: a system prompt, and no template to put it into.
        SourceError: no tokenizer.
        StageError: something that came over a pipe could not be answered or done; all the rest was.
    """
    talk = model.conversation(chat=template)
    if system is not None and not talk.chat:
        raise ConfigError("system: without a chat template, and with chat=false, there is no place for it")
    failed = []
    with Interrupts() as interrupts:
        session = Chat(model, talk, sampling, system, interrupts)
        with Lines(session.commands, interrupts) as lines:
            [(_, weights), *_] = weights_rows(model.facts)
            note(f"{weights}. /help says what there is; Ctrl-C ends an answer, Ctrl-D the chat.")
            if not talk.chat:
                note(PLAIN if template is None else "What you type is continued as it is.")
            if suggestion := suggested.said(model.generation, sampling):
                note(f"{suggestion}.")
            while not session.over and not unread() and (typed := lines.next()) is not None:
                if not session.take(typed, "" if lines.person else f"line {typed.line}: "):
                    failed.append(f"line {typed.line}")
    if failed and not lines.person:
        raise StageError(f"not answered, or not done: {some(failed)}; why is said above")

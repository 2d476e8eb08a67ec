"""`weightmill chat`: a conversation in a terminal, or over a pipe, with a model that is loaded once.

Answers go to stdout, everything else to stderr, so that `… chat DIR < questions > answers` has answers only. Ctrl-C
ends an answer, or takes back the line that is typed; twice during an answer it ends the program.
"""

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pipeline.engine import Conversation, Reply, Session, weights_rows
from pipeline.errors import ConfigError, StageError, WeightmillError, did_you_mean, some
from pipeline.running.typed import QUOTES, Lines, Typed
from pipeline.terminal import safe, say

EFFORTS = ("low", "medium", "high")


class Chat:
    """What was said, how it is answered, and the commands that change either."""

    def __init__(self, model: Session, talk: Conversation, sampling: Any, system: str | None):
        self._model, self._talk, self._sampling, self._system = model, talk, sampling, system
        self._said: list[dict[str, str]] = []
        self._variables: dict[str, Any] = {}
        self._thinking = True
        self._last: Reply | None = None
        self.over = False
        self._settings = {f.name for f in fields(sampling)} - {"stop_tokens"}
        found = (n.removeprefix("_do_") for n in dir(self) if n.startswith("_do_"))
        self.commands = tuple(f"/{name}" for name in sorted([*found, *self._settings]))

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
            say(f"error: {where}{why}")
            return False
        return True

    # Answers.

    def _answer(self) -> None:
        """Say what follows; where nothing does, it was never asked."""
        before = [] if self._system is None else [{"role": "system", "content": self._system}]
        out = _Out(thinking=self._thinking)
        try:
            with _interruptible() as wanted:
                reply = self._talk.reply(
                    [*before, *self._said], self._sampling, on_text=out.show, wanted=wanted, **self._variables
                )
        except BaseException:
            out.end()
            self._said.pop()
            raise
        out.end()
        thought = {} if reply.thought is None else {"thinking": reply.thought}
        self._said.append({"role": "assistant", "content": reply.text, **thought})
        self._last = reply
        _note(_speed(reply))

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
                f"and between {QUOTES} a text may begin so"
            )

    def _set(self, name: str, given: str) -> None:
        if given:
            self._sampling = replace(self._sampling, **{name: _value(name, given, getattr(self._sampling, name))})
        say(f"{name} {json.dumps(getattr(self._sampling, name))}")

    def _do_help(self, _: str) -> None:
        told = {
            "/system TEXT": "what the conversation begins with; /system - for nothing",
            "/reset": "forget what was said", "/undo": "forget the last question and its answer",
            "/retry": "answer the last question again, with the next seed",
            "/save FILE": "write the conversation as JSON", "/stats": "speed, tokens and memory",
            "/exit": "end, as Ctrl-D does",
        }  # fmt: skip
        if self._talk.channels:
            told |= {"/effort LEVEL": f"how long it thinks: {', '.join(EFFORTS)}", "/thinking on|off": "show it"}
        values = {f"/{n}": json.dumps(getattr(self._sampling, n)) for n in sorted(self._settings)}
        width = max(map(len, [*told, *values])) + 2
        say("\n".join(f"{n:{width}}{text}" for n, text in told.items()))
        say("\nHow tokens are chosen; /temperature 0.7 sets it:")
        say("\n".join(f"{n:{width}}{text}" for n, text in values.items()))
        say('\nA text of several lines begins and ends with """. Ctrl-C ends an answer.')

    def _do_system(self, text: str) -> None:
        if text:
            self._system = None if text == "-" else text
        say(f"system: {self._system or 'nothing'}")

    def _do_reset(self, _: str) -> None:
        self._said.clear()
        say("forgotten")

    def _do_undo(self, _: str) -> None:
        if not self._said:
            raise ConfigError("/undo: nothing was said")
        question = self._said[-2]["content"]
        del self._said[-2:]
        say(f"forgotten: {question}")

    def _do_retry(self, _: str) -> None:
        if not self._said:
            raise ConfigError("/retry: nothing was said")
        self._sampling = replace(self._sampling, seed=self._sampling.seed + 1)
        answer = self._said.pop()
        question = self._said[-1]
        try:
            self._answer()
        except BaseException:
            self._said += [question, answer]
            raise

    def _do_effort(self, level: str) -> None:
        if not self._talk.channels:
            raise ConfigError("/effort: this model has no channels to think in")
        if level not in EFFORTS:
            raise ConfigError(f"/effort {level}{did_you_mean(level, EFFORTS)}")
        self._variables = {"reasoning_effort": level}
        say(f"effort {level}")

    def _do_thinking(self, given: str) -> None:
        if given not in ("on", "off"):
            raise ConfigError(f"/thinking {given}{did_you_mean(given, ('on', 'off'))}")
        self._thinking = given == "on"

    def _do_save(self, file: str) -> None:
        if not file:
            raise ConfigError("/save FILE: a file is expected")
        before = [] if self._system is None else [{"role": "system", "content": self._system}]
        try:
            with Path(file).expanduser().open("x", encoding="utf-8") as out:
                json.dump({"messages": [*before, *self._said]}, out, ensure_ascii=False)
        except OSError as why:
            raise ConfigError(f"/save {file}: {why.strerror}") from None
        say(f"saved {file}")

    def _do_stats(self, _: str) -> None:
        for name, value in weights_rows(self._model.facts):
            say(f"{name}: {value}")
        if self._last is not None:
            say(f"conversation: {self._last.tokens + self._last.timings.new_tokens:,} tokens" + self._of_room())
            say(_speed(self._last))

    def _of_room(self) -> str:
        return f" of {self._talk.room:,}" if self._talk.room else ""

    def _do_exit(self, _: str) -> None:
        self.over = True

    _do_quit = _do_bye = _do_exit


class _Out:
    """An answer as it comes: stdout has the answer itself, and a terminal what the model thinks, in grey."""

    def __init__(self, *, thinking: bool):
        self._label, self._thinking, self._begun, self._open = "", thinking, False, False

    def show(self, label: str, text: str) -> None:
        thought = label not in ("", "final")
        if thought and not self._thinking:
            return
        stream = sys.stderr if thought else sys.stdout
        if label != self._label:
            self._break()
            self._label = label
            if thought:
                print(_dim(f"[{label}] "), end="", file=stream, flush=True)
        said = safe(text)
        print(_dim(said) if thought else said, end="", file=stream, flush=True)
        self._begun, self._open = True, not text.endswith("\n")

    def _break(self) -> None:
        if self._open:
            print(file=sys.stderr if self._label not in ("", "final") else sys.stdout, flush=True)
            self._open = False

    def end(self) -> None:
        self._break()


def _note(text: str) -> None:
    print(_dim(safe(text)), file=sys.stderr, flush=True)


def _dim(text: str) -> str:
    plain = not sys.stderr.isatty() or os.environ.get("TERM") == "dumb" or os.environ.get("NO_COLOR")
    return text if plain else f"\x1b[2m{text}\x1b[0m"


def _speed(reply: Reply) -> str:
    t = reply.timings
    ended = {"length": ", cut off at /max_tokens", "interrupted": ", interrupted"}.get(reply.finish, "")
    compiled = f", {t.compile:.1f} s compiling" if t.compile >= 0.1 else ""
    rate = f", {t.decode_rate:.1f} tokens/s" if t.decode_rate else ""
    read = f"read {t.prompt_tokens:,} of {reply.tokens:,} in {t.prefill:.2f} s"
    return f"[{t.new_tokens} tokens{rate}{ended}; {read}{compiled}]"


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


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C is noted, and said twice ends the program; what it gives tells whether it was not."""
    seen: list[int] = []

    def note(signum: int, frame: Any) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(signum)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: not seen
    finally:
        signal.signal(signal.SIGINT, before)


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
    session = Chat(model, talk, sampling, system)
    [(_, weights), *_] = weights_rows(model.facts)
    _note(f"{weights}. /help says what there is; Ctrl-C ends an answer, Ctrl-D the chat.")
    if not talk.chat:
        _note("No chat template: what you type is continued as it is.")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Lines(session.commands) as lines:
            piped = not sys.stdin.isatty()
            failed = []
            while not session.over and (typed := lines.next()) is not None:
                if not session.take(typed, f"line {typed.line}: " if piped else ""):
                    failed.append(f"line {typed.line}")
    finally:
        signal.signal(signal.SIGINT, before)
    if piped and failed:
        raise StageError(f"not answered, or not done: {some(failed)}; why is said above")

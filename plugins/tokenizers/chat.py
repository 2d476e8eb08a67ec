"""Chat templates: jinja2 programs that come with a checkpoint and turn a conversation into text.

A template is written against what transformers offers it (utils/chat_template_utils.py), so the same is offered in
`jinja_process.py`: the immutable sandbox, blocks trimmed, `raise_exception`, `strftime_now`, a `tojson` that escapes no
HTML, `break` and `continue`, `generation` blocks. Templates are code from strangers: they see plain JSON values only,
and run in a process of their own, which the system bounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ConfigError, SourceError, did_you_mean
from plugins.tokenizers import chat_process
from plugins.tokenizers.companions import Companions
from plugins.tokenizers.settings import CONFIG
from plugins.tokenizers.tokenizer import Tokenizer

JINJA, JSON = "chat_template.jinja", "chat_template.json"
LOOKED_FOR = f"{JINJA}, {CONFIG} (chat_template), {JSON}"
# The names under which a message's reasoning travels, best first; templates read one of the first two.
REASONING = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True)
class Template:
    """A chat template and where it is from, as an error should say it."""

    text: str
    where: str

    def render(self, variables: Mapping[str, Any]) -> str:
        """
        Raises:
            SourceError: a mistake in the template, whose file and line are named; or it takes more time, memory or text
                than `chat_process` allows.
            ConfigError: the template refused what it was given, by `raise_exception`.
        """
        said = chat_process.render(self.text, variables, self.where)
        if "refused" in said:
            raise ConfigError(f"{self.where}: the chat template refuses these messages: {said['refused']}")
        if "error" in said:
            line = f", line {said['line']}" if said["line"] else ""
            what = f"the chat template failed: {said['kind']}: " if said["kind"] else "mistake in the chat template: "
            raise SourceError(f"{self.where}{line}: {what}{said['error']}")
        return str(said["text"])


@dataclass(frozen=True)
class Templates:
    """The chat templates of a checkpoint, and the special tokens they may name.

    Attributes:
        named: templates by name; most checkpoints have one, `default`.
        tokens: `bos_token` and the like.
        origin: the checkpoint, for errors.
        chosen: name of the template to take; None: `tool_use` for a conversation with tools if there is one, else
            `default`.
    """

    named: Mapping[str, Template]
    tokens: Mapping[str, str]
    origin: str = ""
    chosen: str | None = None

    @property
    def exists(self) -> bool:
        return bool(self.named)

    def ids(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> list[int]:
        return tokenizer.encode(self.render(messages, add_generation_prompt, variables))

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, variables: Mapping[str, Any]
    ) -> str:
        """The conversation as text; see `Tokenizer.chat`."""
        if not messages:
            raise ConfigError("a chat needs at least one message, with `role` and `content`")
        for message in messages:
            if not isinstance(message, Mapping):
                raise ConfigError(f"a message is a mapping with `role` and `content`, not {message!r}")
        seen = {"tools": None, "documents": None} | {k: _plain(v) for k, v in variables.items()}
        # Unset is what templates test for; services send null.
        plain = [_reasoning({k: _plain(v) for k, v in m.items() if v is not None}) for m in messages]
        about = {"messages": plain, "add_generation_prompt": add_generation_prompt}
        return self._pick(variables.get("tools")).render({**self.tokens, **seen, **about})

    def _pick(self, tools: Any) -> Template:
        if not self.named:
            raise SourceError(
                f"{self.origin or 'the checkpoint'}: has no chat template (looked for: {LOOKED_FOR}); "
                "tokenizer.chat_template=FILE names one, and without it prompts have to be plain text"
            )
        if self.chosen is not None:
            if self.chosen not in self.named:
                raise ConfigError(
                    f"tokenizer.chat_template={self.chosen!r}: neither a file nor a template of {self.origin}"
                    f"{did_you_mean(self.chosen, self.named)}"
                )
            return self.named[self.chosen]
        wanted = "tool_use" if tools is not None and "tool_use" in self.named else "default"
        if wanted not in self.named:
            names = ", ".join(self.named)
            raise ConfigError(
                f"{self.origin}: has several chat templates and no default; tokenizer.chat_template=NAME chooses "
                f"(allowed: {names})"
            )
        return self.named[wanted]


def read_templates(files: Companions) -> dict[str, Template]:
    """Templates by name, from the first of `LOOKED_FOR` that has any (the order of transformers).

    Raises:
        SourceError: a file does not hold what it should.
    """
    if JINJA in files:
        return {"default": Template(files.text(JINJA), files.where(JINJA))}
    for name in (CONFIG, JSON):
        given, where = files.json(name).get("chat_template"), f"{files.where(name) if name in files else name}"
        if given is None:
            continue
        if isinstance(given, str):
            return {"default": Template(given, f"{where} (chat_template)")}
        try:
            return {str(t["name"]): Template(t["template"], f"{where} (chat_template {t['name']})") for t in given}
        except (TypeError, KeyError):
            raise SourceError(f"{where}: chat_template should be a text, or a list of `name` and `template`") from None
    return {}


def _reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """One spelling of the reasoning becomes those that templates read (transformers 5 does so)."""
    found = next((message[name] for name in REASONING if name in message), None)
    return message if found is None else {"thinking": found, **message, "reasoning_content": found}


def _plain(value: Any) -> Any:
    """`value` in plain JSON types, so that a template finds no method it could call.

    Raises:
        ConfigError: something that is no JSON value.
    """
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    for kind in (bool, int, float, str):  # subclasses become what they are a kind of
        if isinstance(value, kind):
            return kind(value) if kind is not str else str.__str__(value)
    if value is None:
        return None
    raise ConfigError(f"a chat holds JSON values only, not {type(value).__name__} ({value!r})")

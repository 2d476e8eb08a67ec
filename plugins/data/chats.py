"""Chats: JSON Lines of messages, or of prompts with completions, by the checkpoint's chat template."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.digest import InputFile
from pipeline.errors import ConfigError, some
from pipeline.stage import Results
from plugins.data import sources
from plugins.data.answers import ASSISTANT, SPOKEN, chat_tokens
from plugins.data.corpus import Some, Tokenized, tokenized
from plugins.data.documents import check_end
from plugins.data.faults import Faults
from plugins.data.language import Language
from plugins.tokenizers.tokenizer import Tokenizer

MESSAGES, PROMPT, COMPLETION, TOOLS = "messages", "prompt", "completion", "tools"
NAMED = 6  # fields of a line that is no chat


@dataclass(frozen=True)
class Chats(Language):
    """Conversations; what the assistant says is learned, the rest is given.

    A line is `{"messages": [{"role": …, "content": …}, …]}`, with `tools` where there are some, or `{"prompt": …,
    "completion": …}`: texts, which are a user's and the assistant's, or lists of messages.

    Attributes:
        variables: for the chat template: enable_thinking, date, …
    """

    length: int = 1024
    variables: Mapping[str, Any] = field(default_factory=dict)

    def _look(self, file: InputFile, faults: Faults) -> None:
        before, count = len(faults.problems), 0
        with sources.streamed(file.path) as stream:
            for line, found in sources.objects(stream, faults, sources.CHECKED):
                count += bool(_messages(found, file, line, faults))
        if not count and len(faults.problems) == before:
            faults.add(file.path, "has no chats in it")
        check_end(file.path, faults)

    def _able(self, tokenizer: Tokenizer | None) -> Tokenizer:
        if tokenizer is None or not tokenizer.has_chat_template:
            raise ConfigError(
                "data: chats need a tokenizer with a chat template, and the checkpoint has none; "
                "tokenizer.chat_template=FILE names one"
            )
        return tokenizer

    def _tokenized(self, results: Results, file: InputFile, tokenizer: Tokenizer) -> Tokenized:
        options = {"kind": "chats", "tokenizer": tokenizer.identity, "variables": dict(self.variables)}

        def read(faults: Faults) -> Iterator[Some]:
            with sources.streamed(file.path) as stream:
                for line, found in sources.objects(stream, faults):
                    messages = _messages(found, file, line, faults)
                    tools = {TOOLS: found[TOOLS]} if found.get(TOOLS) else {}
                    try:
                        if messages:
                            ids, answers = chat_tokens(messages, tokenizer, {**tools, **self.variables})
                            yield Some(ids, answers, True, stream.at)
                    except ConfigError as why:
                        faults.add(file.path, str(why), line)

        return tokenized(results, file, options, tokenizer.vocab_size, read)


def _messages(found: Mapping[str, Any], file: InputFile, line: int, faults: Faults) -> list[Mapping[str, Any]]:
    """The messages of a line; none where something is wrong with them, which goes to `faults`."""

    def wrong(text: str) -> list[Mapping[str, Any]]:
        faults.add(file.path, text, line)
        return []

    if MESSAGES in found:
        messages = found[MESSAGES]
    elif PROMPT in found and COMPLETION in found:
        messages = [*_turn(found[PROMPT], "user"), *_turn(found[COMPLETION], ASSISTANT)]
    else:
        has = some(list(map(repr, found)), most=NAMED) or "nothing"
        text = "; data=text is for texts" if "text" in found else ""
        return wrong(f"has neither {MESSAGES!r} nor {PROMPT!r} and {COMPLETION!r}, but {has}{text}")
    if not isinstance(messages, list) or not messages:
        return wrong(f"{MESSAGES!r} is {messages!r:.60}; a list of messages is expected")
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            return wrong(f"message {number} is {message!r:.80}; an object with 'role' and 'content' is expected")
        if not isinstance(message.get("content"), str | list | None):
            return wrong(f"message {number}: 'content' is {message['content']!r:.60}; a text is expected")
    said = [m for m in messages if m["role"] == ASSISTANT and any(m.get(k) for k in (*SPOKEN, "tool_calls"))]
    if not said:
        roles = ", ".join(dict.fromkeys(m["role"] for m in messages))
        return wrong(f"the assistant says nothing, so there is nothing to learn (roles: {roles:.80})")
    return messages


def _turn(given: Any, role: str) -> list[Any]:
    return given if isinstance(given, list) else [{"role": role, "content": given}]

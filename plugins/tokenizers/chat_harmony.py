"""Chats in harmony for a gpt-oss that brings no chat template, the original release.

Messages are those of chat services (`role`, `content`, `tool_calls`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any

from pipeline.errors import ConfigError, did_you_mean
from plugins.tokenizers.harmony import CONSTRAIN, FUNCTIONS, TOKENS, Developer, Harmony, Message, System
from plugins.tokenizers.harmony_tools import Namespace, Tool
from plugins.tokenizers.tokenizer import Tokenizer

VARIABLES = ("tools", "reasoning_effort", "model_identity", "date")


class HarmonyChat:
    """See `loaded.Chat`.

    As gpt-oss's own chat template does it: the first message, if its role is system or developer, is the developer's
    instructions; the system message is the one the model was trained with, with today's date. Variables: `tools`
    (function schemas), `reasoning_effort`, `model_identity`, `date` (`2025-06-28`).
    """

    exists = True

    @staticmethod
    def fits(id_of: Callable[[str], int | None]) -> bool:
        """Whether a vocabulary has the tokens of the format."""
        return all(id_of(t) is not None for t in TOKENS)

    def ids(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> list[int]:
        harmony, conversation = Harmony(tokenizer), conversation_of(messages, **variables)
        return harmony.prompt(conversation) if add_generation_prompt else harmony.training(conversation)


def conversation_of(messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[Message]:
    """Messages as chat services have them (`role`, `content`, `tool_calls`, `reasoning_content`) in harmony's terms.

    Raises:
        ConfigError: a variable, role or content that there is not.
    """
    if not messages:
        raise ConfigError("a chat needs at least one message, with `role` and `content`")
    if unknown := [v for v in variables if v not in VARIABLES]:
        raise ConfigError(f"harmony has no variable {unknown[0]!r}{did_you_mean(unknown[0], VARIABLES)}")
    about: dict[str, Any] = {"date": variables.get("date") or date.today().isoformat()}
    about |= {"effort": e} if (e := variables.get("reasoning_effort")) else {}
    about |= {"identity": i} if (i := variables.get("model_identity")) else {}
    out = [Message("system", System(**about))]
    tools = tuple(_tool(t) for t in variables.get("tools") or ())
    namespaces = (Namespace(FUNCTIONS, None, tools),) if tools else ()
    first = messages[0].get("role") in ("system", "developer")
    if first or namespaces:
        out.append(Message("developer", Developer(_text(messages[0]) if first else None, namespaces)))
    called: dict[Any, str] = {}
    for message in messages[1:] if first else messages:
        out += _messages(message, called)
    return out


def _messages(message: Mapping[str, Any], called: dict[Any, str]) -> list[Message]:
    """One message of a service may be several of harmony's. `called`: names of functions by id of the call."""
    match message.get("role"):
        case "user":
            return [Message("user", _text(message))]
        case "tool":
            name = message.get("name") or called.get(message.get("tool_call_id")) or called.get(None)
            if name is None:
                raise ConfigError("a message with role='tool' needs `name`, or to follow the call it answers")
            name = name if "." in name else f"{FUNCTIONS}.{name}"
            return [Message("tool", _text(message), "commentary", "assistant", name=name)]
        case "assistant":
            out = []
            thought = next((message[k] for k in ("reasoning_content", "thinking", "reasoning") if message.get(k)), None)
            if thought is not None:
                out.append(Message("assistant", thought, "analysis"))
            calls = message.get("tool_calls") or ()
            if text := _text(message):
                out.append(Message("assistant", text, "commentary" if calls else "final"))
            for call in calls:
                function = call.get("function", call)
                called[call.get("id")] = called[None] = str(function["name"])
                given = function.get("arguments") or {}
                arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
                to = f"{FUNCTIONS}.{function['name']}"
                out.append(Message("assistant", arguments, "commentary", to, f"{CONSTRAIN}json"))
            return out
        case role:
            allowed = ("user", "assistant", "tool")
            raise ConfigError(
                f"role={role!r}: system and developer come first, and after them there is no such role"
                f"{did_you_mean(str(role), allowed)}"
            )


def _text(message: Mapping[str, Any]) -> str:
    """Content is a text, or a list of parts with `text`."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    try:
        return "".join(part["text"] for part in content)
    except (TypeError, KeyError):
        raise ConfigError(f"the content of a message should be text, or parts with `text`, not {content!r}") from None


def _tool(given: Mapping[str, Any]) -> Tool:
    function = given.get("function", given)
    try:
        return Tool(function["name"], function.get("description") or "", function.get("parameters"))
    except (TypeError, KeyError, AttributeError):
        raise ConfigError(f"a tool should have a name, a description and parameters, not {given!r}") from None

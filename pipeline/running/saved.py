"""Conversations as files: JSON as chat services have it, `{"messages": [{"role": …, "content": …}]}`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import ConfigError
from pipeline.files import placed, read_whole, spoken, write_new
from pipeline.strictjson import parse

SYSTEM, TURN = "system", ("user", "assistant")


def save(file: str, messages: Sequence[Mapping[str, Any]]) -> None:
    """Write a new file, whole or not at all.

    Raises:
        SourceError: no path.
        StorageError: it is there already, or cannot be written.
    """
    write_new(placed(file), json.dumps({"messages": messages}, ensure_ascii=False))


def load(file: str) -> tuple[str | None, list[dict[str, str]]]:
    """The system prompt, and questions and answers in turn, as `save` wrote them.

    Raises:
        SourceError: no path, no such file, or none of at most `pipeline.files.MAX_NBYTES` and of strict JSON.
        ConfigError: something else is in it.
    """
    path = placed(file)
    given = parse(read_whole(path), spoken(path))
    messages = given.get("messages") if isinstance(given, dict) else given
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise ConfigError(f'{file}: {{"messages": […]}} is expected, as /save writes it')
    system = None
    if messages and messages[0].get("role") == SYSTEM:
        system, messages = messages[0].get("content"), messages[1:]
    roles = [m.get("role") for m in messages]
    if roles != [TURN[i % 2] for i in range(len(roles) // 2 * 2)]:
        raise ConfigError(f"{file}: a user's messages and an assistant's are expected, in turn and as many")
    texts = [*([] if system is None else [system]), *(v for m in messages for v in (m.get("content"), *_thoughts(m)))]
    if strange := [t for t in texts if not isinstance(t, str)]:
        raise ConfigError(f"{file}: content {strange[0]!r:.100}: a text is expected")
    return system, [{k: m[k] for k in ("role", "content", "thinking") if k in m} for m in messages]


def _thoughts(message: Mapping[str, Any]) -> list[Any]:
    return [message["thinking"]] if "thinking" in message else []

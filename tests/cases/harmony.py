"""Conversations in harmony. `harmony.json` has their text and ids as the package openai-harmony 0.0.8 renders them."""

import json
from pathlib import Path
from typing import Any

from plugins.tokenizers.harmony import Developer, Message, System
from plugins.tokenizers.harmony_tools import Namespace, Tool

# Every branch of the way from JSON schemas to TypeScript.
SCHEMA = {
    "type": "object",
    "description": "where and how",
    "properties": {
        "city": {"type": "string", "description": "The city", "title": "City", "examples": ["SF, CA", "Bern"]},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "integer", "default": 10, "nullable": True},
        "offset": {"type": "number", "default": -1.5},
        "hourly": {"type": "boolean", "default": False},
        "names": {"type": "array", "items": {"type": "string"}},
        "list": {"type": "array"},
        "anything": {},
        "several": {"type": ["integer", "string", "null"], "default": None, "nullable": True},
        "note": {"type": "string", "default": 'a "q" é'},
        "inner": {
            "type": "object",
            "default": {"a": [1, 2.0], "b": "é"},
            "properties": {"deep": {"type": "string", "description": "deep down"}},
            "required": ["deep"],
        },
        "either": {
            "oneOf": [
                {"type": "string", "description": "a text", "default": "zz"},
                {"type": "number", "default": 3, "nullable": True},
                {"type": "string", "enum": ["u", "v"], "default": "u", "description": "an option"},
                {"type": "object", "properties": {"q": {"type": "string"}}},
            ],
            "description": "one of these",
            "default": "k",
            "title": "Either",
        },
        "same": {
            "oneOf": [
                {"type": "string", "description": "said twice"},
                {
                    "type": "array",
                    "items": {"oneOf": [{"type": "string", "enum": ["p"], "default": "p"}, {"type": "x"}]},
                },
            ],
            "description": "said twice",
            "enum": ["k"],
            "default": "k",
        },
        "bare": {"oneOf": [{"type": "string", "description": "first"}, {"type": "number", "description": "second"}]},
        "numbers": {"type": "string", "enum": [1, 2], "default": "1"},
        "none": {"type": "string", "enum": []},
        "empty": {"type": "object"},
        "nothing": {"oneOf": []},
    },
    "required": ["city", "either"],
}
LOCATION = Tool("get_location", "Gets the location\nof the user.")
FUNCTIONS = (Namespace("functions", None, (LOCATION, Tool("get_weather", "Weather\r\nnow\n", SCHEMA))),)
FEW = (Namespace("functions", None, (LOCATION,)),)
SYSTEM = Message("system", System(date="2025-06-28", effort="high"))
CALL = [
    SYSTEM,
    Message("developer", Developer("Be nice.", FEW)),
    Message("user", "Where am I?"),
    Message("assistant", "I have to ask.", "analysis"),
    Message("assistant", "{}", "commentary", "functions.get_location", "<|constrain|>json"),
    Message("tool", '{"city": "Zürich"}', "commentary", "assistant", name="functions.get_location"),
]
CONVERSATIONS: dict[str, list[Message]] = {
    "plain": [Message("system", System()), Message("user", "What is 2 + 2?")],
    "text": [SYSTEM, Message("user", "Is <|end|> a token? 日本語 🦙  'll\n\n12345")],
    "functions": [SYSTEM, Message("developer", Developer("Be nice.", FUNCTIONS)), Message("user", "Hi")],
    "built in": [
        Message(
            "system",
            System(
                identity=None,
                date="2020-01-01",
                channel_required=False,
                tools=(Namespace("python", "Use it.\n\nTwice."), Namespace("browser", "A tool\nfor x", FEW[0].tools)),
            ),
        )
    ],
    "bare": [
        Message("system", System(identity=None, cutoff=None, effort=None, channels=())),
        Message("developer", Developer()),
        Message("developer", Developer(None, (Namespace("functions"),))),
        Message("user", "Hi", name="bob"),
    ],
    "call": CALL,
    "answered": [*CALL, Message("assistant", "In Zürich.", "final")],
    "asked again": [*CALL, Message("assistant", "In Zürich.", "final"), Message("user", "Sure?")],
    "thinking again": [
        *CALL,
        Message("assistant", "In Zürich.", "final"),
        Message("user", "Sure?"),
        Message("assistant", "Let me see.", "analysis"),
    ],
    "twice": [
        *CALL,
        Message("assistant", "In Zürich.", "final"),
        Message("user", "Sure?"),
        Message("assistant", "Let me see.", "analysis"),
        Message("assistant", "Yes.", "final"),
    ],
    "content types": [
        Message("assistant", "x", "commentary", "functions.a", "json"),
        Message("assistant", "x", "commentary", "all", "<|constrain|> json"),
        Message("assistant", "x", None, "b", "<|constrain|>"),
    ],
}
# What models write, well and badly formed; with the role of the message that has begun.
GENERATED: dict[str, tuple[str, str | None]] = {
    "answer": (
        "<|channel|>analysis<|message|>Think 日本🦙<|end|><|start|>assistant<|channel|>final<|message|>Four.<|return|>",
        "assistant",
    ),
    "call": ("<|channel|>commentary to=functions.w <|constrain|>json<|message|>{}<|call|>", "assistant"),
    "call, no space": ("<|channel|>commentary to=functions.w<|constrain|>json<|message|>{}<|call|>", "assistant"),
    "call, to first": (" to=functions.w<|channel|>commentary <|constrain|>json<|message|>{}<|call|>", "assistant"),
    "preamble": ("<|channel|>commentary<|message|>I shall<|end|><|start|>assistant to=a<|message|>x", "assistant"),
    "result": ("<|start|>functions.w to=assistant<|channel|>commentary<|message|>{}<|end|>", None),
    "user": ("<|start|>user<|message|>hi<|end|>", None),
    "tool": ("<|start|>tool<|message|>hi<|end|>", None),
    "unfinished": ("<|channel|>final<|message|>Fo", "assistant"),
    "tokens in content": ("<|message|>a<|start|>user<|channel|>zz<|end|>", "assistant"),
    "role again": ("assistant<|channel|>final<|message|>x", "assistant"),
    "bare recipient": ("<|channel|>analysis code<|message|>q", "assistant"),
    "unknown role": ("<|start|>nobody<|message|>hi<|end|>", None),
    "no start": ("hi<|message|>x", None),
    "no channel": ("<|channel|><|message|>x", "assistant"),
    "long header": ("<|channel|>final extra words here<|message|>x", "assistant"),
    "no message": ("<|channel|>final oops text <|end|><|start|>assistant<|channel|>final<|message|>y", "assistant"),
    "no header": ("hello there<|return|>", "assistant"),
    "header only": ("<|channel|>final", "assistant"),
    "after the end": ("<|message|>x<|end|>y", "assistant"),
    "nothing": ("", "assistant"),
    "two ends": ("<|message|>x<|end|><|end|>", "assistant"),
}


def recorded() -> dict[str, Any]:
    """Conversations as `{name: {text, ids, training, all}}`, what was generated as `{name: {strict, lenient}}`."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "harmony.json").read_bytes())
    return found


def fields(message: Message) -> list[Any]:
    """A message as `harmony.json` has it."""
    return [message.role, message.name, message.channel, message.recipient, message.content_type, message.content]

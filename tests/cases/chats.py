"""Chat templates in the style of those in use, written for these tests, and conversations that reach their branches."""

from pathlib import Path

TEMPLATES = {
    path.stem: path.read_text(encoding="utf-8") for path in sorted((Path(__file__).parent / "chat_templates").iterdir())
}

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather <b>now</b> in a city's centre — é",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}}
USER, ANSWER = {"role": "user", "content": " What is <|im_end|> 2 + 2? "}, {"role": "assistant", "content": "Four."}
CHATS = {
    "one": [USER],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "turns": [USER, ANSWER, USER],
    "thought": [USER, ANSWER | {"reasoning_content": "2 + 2"}, USER, ANSWER | {"thinking": "hm\n"}],
    "inline": [USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nFour."}],
    "nulls": [USER, ANSWER | {"tool_calls": None, "name": None}],
    "parts": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " a cat? "}]}],
    "calls": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "sunny"}],
    "two": [USER, {"role": "assistant", "tool_calls": [CALL, CALL]}, {"role": "tool", "content": {"sun": True}}],
    "odd": [USER, {"role": "skip", "content": "x"}, ANSWER, {"role": "stop", "content": "x"}, USER],
}
VARIABLES = {
    "none": {},
    "tools": {"tools": [TOOL], "date_string": "1 Jan 2026"},
    "off": {"enable_thinking": False, "date_string": "1 Jan 2026", "add_generation_prompt": False},
    "quiet": {"enable_thinking": False, "bos_token": "<other>"},
}

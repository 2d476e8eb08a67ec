"""Which tokens of a chat the assistant wrote: exactly those that it would have had to generate.

A template is a program, and where it puts an answer only running it shows. It is run three ways:

* up to an answer, with the prompt for the assistant's turn. Where the whole chat begins with those tokens, the answer
  begins right after them: what follows is what a model generates, a thought or the header of a channel too;
* whole, with the texts of that answer exchanged for a letter that the chat has nowhere. What differs, from the front
  and from the back, is the answer as the template prints it, trimmed or otherwise changed. That holds where turns are
  merged too, or early ones are printed differently from the last;
* whole, as it is: these are the tokens. The token that ends a turn comes after the answer and belongs to it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import ConfigError
from plugins.tokenizers.chat import REASONING
from plugins.tokenizers.tokenizer import Tokenizer

ASSISTANT = "assistant"
SPOKEN = ("content", *REASONING)  # of a message, what the assistant says in it
# What an answer is exchanged for: letters, digits and others, because some tokens join with what stands before them.
LETTERS = "QZqz7420§¤ЖЩ水火"
PROBES = 2

Messages = Sequence[Mapping[str, Any]]


def chat_tokens(messages: Messages, tokenizer: Tokenizer, variables: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """The tokens of a chat, and for each 1 where it is the assistant's, 0 where it was given.

    Raises:
        ConfigError: the template refuses these messages; or there is no answer in what it makes of them.
        SourceError: there is no template, or it has a mistake.
    """
    ids = tokenizer.chat(messages, add_generation_prompt=False, **variables)
    answers, end = [0] * len(ids), 0
    for i, message in enumerate(messages):
        if message.get("role") == ASSISTANT:
            begin, end = _span(i, messages, ids, end, tokenizer, variables)
            answers[begin:end] = [1] * (end - begin)
    if not any(answers):
        raise ConfigError("the chat template leaves nothing of what the assistant says")
    return ids, answers


def _span(
    i: int, messages: Messages, ids: list[int], after: int, tokenizer: Tokenizer, variables: Mapping[str, Any]
) -> tuple[int, int]:
    """Where answer `i` begins and ends; empty where the template prints nothing of it.

    Args:
        after: where the answer before it ends.
    """
    begin, end = after, len(ids)
    for letter in _letters(messages):
        other = [*messages[:i], _exchanged(messages[i], letter), *messages[i + 1 :]]
        found = tokenizer.chat(other, add_generation_prompt=False, **variables)
        if found == ids:
            return after, after
        front = _common(ids, found)
        back = _common(ids[front:][::-1], found[front:][::-1])
        begin, end = max(begin, front), min(end, len(ids) - back)
    prompt = _prompt(messages[:i], tokenizer, variables)
    if prompt is not None and after <= len(prompt) <= begin and ids[: len(prompt)] == prompt:
        begin = len(prompt)
    return begin, _ended(i, messages, ids, end, tokenizer, variables)


def _ended(
    i: int, messages: Messages, ids: list[int], end: int, tokenizer: Tokenizer, variables: Mapping[str, Any]
) -> int:
    """Where answer `i`, whose own text ends at `end`, ends with the token that ends a turn; `end` where there is none.

    Of a call of tools that comes after what closes it, a brace for one, but before the next message.
    """
    if messages[i].get("tool_calls"):
        most = len(ids)
        if i + 1 < len(messages):
            other = [*messages[: i + 1], _exchanged(messages[i + 1], _letters(messages)[0]), *messages[i + 2 :]]
            most = _common(ids, tokenizer.chat(other, add_generation_prompt=False, **variables))
        places = range(end, most)
        found = next((k for k in places if ids[k] in tokenizer.eos), None)
        found = next((k for k in places if ids[k] in tokenizer.special), None) if found is None else found
        return end if found is None else found + 1
    at = end
    while at < len(ids) and not tokenizer.decode([ids[at]], skip_special=False).strip():
        at += 1
    return at + 1 if at < len(ids) and ids[at] in tokenizer.special | {*tokenizer.eos} else end


def _letters(messages: Messages) -> list[str]:
    """A few characters that the chat has nowhere."""
    text = repr(messages)
    free = [c for c in LETTERS if c not in text]
    free += [c for c in map(chr, range(0x4E00, 0x9FFF)) if c not in text][: PROBES - len(free)] if not free[1:] else []
    return [free[0], free[len(free) // 2]]


def _exchanged(message: Mapping[str, Any], letter: str) -> dict[str, Any]:
    """The message with other texts, as many and in the same places."""
    said = {k: _other(v, letter) if k in SPOKEN else v for k, v in message.items()}
    if isinstance(message.get("tool_calls"), list):
        said["tool_calls"] = [_call(call, letter) for call in message["tool_calls"]]
    return said


def _call(call: Any, letter: str) -> Any:
    if not isinstance(call, Mapping):
        return call
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _call(call["function"], letter)}
    given = call.get("arguments")
    other = f'{{"{letter}": "{letter}"}}' if isinstance(given, str) else {letter: letter}
    return {**call, "arguments": other}


def _other(value: Any, letter: str) -> Any:
    if isinstance(value, str):
        return letter if value else value
    if isinstance(value, list):  # parts with text
        return [{**p, "text": letter} if isinstance(p, Mapping) and p.get("text") else p for p in value]
    return value


def _prompt(messages: Messages, tokenizer: Tokenizer, variables: Mapping[str, Any]) -> list[int] | None:
    """What a model is given for its answer to `messages`; None where the template refuses that."""
    try:
        return tokenizer.chat(messages, add_generation_prompt=True, **variables) if messages else None
    except ConfigError:
        return None


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many they begin with alike."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

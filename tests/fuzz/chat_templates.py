"""Chat templates, their statements moved, doubled and put together anew; rendered for a few conversations."""

import json
import random
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from plugins.tokenizers import chat_process
from plugins.tokenizers.load import load_tokenizer
from tests.cases import tokenizers as cases
from tests.fuzz.driver import Files
from tests.fuzz.mutate import one, text

TEMPLATES = [p.read_text() for p in sorted((Path(__file__).parents[1] / "cases" / "chat_templates").glob("*.jinja"))]
STATEMENT = re.compile(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}", re.S)
HOSTILE = (
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "{{ 'x' * 10**10 }}",
    "{{ 2**(2**40) }}",
    "{% set x = [1] * 10**10 %}",
    "{{ messages.__class__ }}",
    "{{ range(10**8)|list }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ ('a' * 30)|replace('', 'b' * 10000) }}",
    "{{ 1 / 0 }}",
    "{{ none.x.y }}",
    "{{ raise_exception('no') }}",
    "{{ messages|tojson(indent=10**9) }}",
    "{{ strftime_now('%Y' * 100000) }}",
    "{{ lipsum(n=10**9) }}",
    "{% include 'x' %}",
    "{{ cycler(1).__init__.__globals__ }}",
    "{{ 'x'|center(10**10) }}",
    "{{ dict(a=1).update(b=2) }}",
    "{{ [].append([]) }}",
    "{{ namespace(a=1) }}",
    "{% for x in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "{{ 'a'.join(range(10**7)|map('string')) }}",
)
PIECES = (
    "{%", "%}", "{{", "}}", "{%-", "-%}", "{% endfor %}", "{% endif %}", "{% if x %}", "{% for x in messages %}",
    "|tojson", "messages", "[0]", "['content']", "|length", "(", ")", "'", "**", "* 9999", "none", "true", "\0",
    "\ud7ff", "loop", "|trim",
)  # fmt: skip
CHATS: tuple[list[dict[str, object]], ...] = (
    [{"role": "user", "content": "hello"}],
    [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "x"}]}],
    [{"role": "assistant", "content": "a", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}],
)


def make(rng: random.Random) -> Files:
    found = one(rng, TEMPLATES)
    for _ in range(one(rng, (1, 1, 2, 3))):
        spans = [m.span() for m in STATEMENT.finditer(found)] or [(0, 0)]
        begin, end = one(rng, spans)
        kind = rng.randrange(6)
        if kind == 0:
            found = found[:begin] + found[end:]
        elif kind == 1:
            at, _ = one(rng, spans)
            found = found[:at] + found[begin:end] + found[at:]
        elif kind == 2:
            other = one(rng, TEMPLATES)
            begin2, end2 = one(rng, [m.span() for m in STATEMENT.finditer(other)] or [(0, 0)])
            found = found[:begin] + other[begin2:end2] + found[end:]
        elif kind == 3 and rng.random() < 0.3:
            found = found[:begin] + one(rng, HOSTILE) + found[end:]
        else:
            found = text(rng, found, PIECES)
    return {"chat_template.jinja": found.encode(errors="replace")}


@cache
def _rest() -> Files:
    return {
        "tokenizer.json": cases.tokenizer_json("byte_level"),
        "tokenizer_config.json": json.dumps({"bos_token": "<|a|>", "eos_token": "<t>"}).encode(),
    }


def run(files: Mapping[str, bytes], folder: Path) -> None:
    chat_process.SECONDS = 1  # of CPU time: the driver's patience is of a clock, on a machine that may be busy
    tokenizer = load_tokenizer({**_rest(), **files}, {}, "here")
    for chat in CHATS:
        tokenizer.chat(chat, add_generation_prompt=True)

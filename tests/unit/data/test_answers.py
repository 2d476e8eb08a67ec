"""Which tokens of a chat are the assistant's, for templates of every habit: exactly what the model has to generate."""

import json

import pytest
from tokenizers import AddedToken, Tokenizer

from pipeline.errors import ConfigError
from plugins.data.answers import chat_tokens
from plugins.tokenizers.load import load_tokenizer
from tests.cases import chats
from tests.cases import tokenizers as cases

USER, ANSWER = {"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "It is four."}
AGAIN, MORE = {"role": "user", "content": "And 3 + 3?"}, {"role": "assistant", "content": "Six"}
THOUGHT = MORE | {"reasoning_content": "3 and 3"}
MARKS = ("<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>", "</s>")
# As Llama 2's: no header at all, spaces around, system words within the first question, an end after each answer.
INST = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content | trim }} "
    "</s>{% endif %}{% endfor %}"
)
# What one role says in several messages becomes one turn.
MERGED = (
    "{% for m in messages %}{% if not loop.previtem or loop.previtem.role != m.role %}<|im_start|>{{ m.role }}\n"
    "{% endif %}{{ m.content }}{% if not loop.nextitem or loop.nextitem.role != m.role %}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = "{% for m in messages %}{{ m.role | upper }}: {{ m.content }}\n{% endfor %}"


def loaded(template, kind="byte_level"):
    tokenizer = Tokenizer.from_str(cases.tokenizer_json(kind).decode())
    tokenizer.add_special_tokens([AddedToken(m, special=True, normalized=False) for m in MARKS])
    about = {"chat_template": template, "eos_token": "</s>"}
    files = {"tokenizer.json": tokenizer.to_str(), "tokenizer_config.json": json.dumps(about)}
    return load_tokenizer({n: text.encode() for n, text in files.items()}, {})


def answers(tokenizer, messages, **variables):
    """The texts of the runs of tokens that count."""
    ids, counts = chat_tokens(messages, tokenizer, variables)
    assert ids == tokenizer.chat(messages, add_generation_prompt=False, **variables)
    assert len(ids) == len(counts)
    found, run = [], []
    for token, count in zip([*ids, 0], [*counts, 0], strict=True):
        if count:
            run.append(token)
        elif run:
            found.append(tokenizer.decode(run, skip_special=False))
            run = []
    return found


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize(
    ("template", "messages", "expected"),
    [
        (chats.TEMPLATES["chatml"], [USER, ANSWER], ["It is four.<|im_end|>"]),
        (chats.TEMPLATES["chatml"], [USER, ANSWER, AGAIN, MORE], ["It is four.<|im_end|>", "Six<|im_end|>"]),
        (chats.TEMPLATES["turns"], [USER, ANSWER, AGAIN, MORE], ["It is four.<end_of_turn>", "Six<end_of_turn>"]),
        (INST, [USER, ANSWER, AGAIN, MORE], [" It is four. </s>", " Six </s>"]),
        (MERGED, [USER, ANSWER, MORE, AGAIN, MORE], ["It is four.Six<|im_end|>", "Six<|im_end|>"]),
    ],
)  # fmt: skip
def test_what_has_to_be_generated(kind, template, messages, expected):
    found = answers(loaded(template, kind), messages)
    assert [f.strip() for f in found] == [e.strip() for e in expected]  # a decoder may drop a first space


def test_white_space_that_the_template_trims():
    tokenizer = loaded(chats.TEMPLATES["turns"])
    assert answers(tokenizer, [USER, ANSWER | {"content": "  It is four.\n\n"}]) == ["It is four.<end_of_turn>"]


def test_thoughts_are_learned_where_the_template_prints_them():
    tokenizer = loaded(chats.TEMPLATES["thinking"])
    early = ANSWER | {"reasoning_content": "2 and 2"}
    assert answers(tokenizer, [USER, early, AGAIN, THOUGHT]) == [
        "It is four.<|im_end|>",  # its thought is not printed
        "<think>\n3 and 3\n</think>\n\nSix<|im_end|>",
    ]
    inline = MORE | {"content": "<think>\nhm\n</think>\n\nSix"}
    assert answers(tokenizer, [AGAIN, inline]) == ["<think>\nhm\n</think>\n\nSix<|im_end|>"]


def test_calls_of_tools():
    tokenizer = loaded(chats.TEMPLATES["thinking"])
    messages = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [chats.CALL]},
        {"role": "tool", "content": "x"},
    ]
    call, last = answers(tokenizer, [*messages, MORE], tools=[chats.TOOL])
    assert json.loads(call.split("<tool_call>\n")[1].split("\n</tool_call>")[0])["name"] == "get_weather"
    assert call.endswith("</tool_call><|im_end|>")
    assert last.endswith("Six<|im_end|>")


def test_a_template_that_has_no_prompt_for_an_answer():
    """Then the model has to say itself that it speaks."""
    found = answers(loaded(PLAIN), [USER, ANSWER, AGAIN, MORE])
    assert [f.strip() for f in found] == ["ASSISTANT: It is four.", "ASSISTANT: Six"]


def test_an_answer_that_the_template_leaves_out():
    tokenizer = loaded("{{ messages[0].content }}")
    with pytest.raises(ConfigError, match="leaves nothing of what the assistant says"):
        chat_tokens([USER, ANSWER], tokenizer, {})


def test_an_answer_that_repeats_the_question():
    tokenizer = loaded(chats.TEMPLATES["chatml"])
    echo = {"role": "assistant", "content": USER["content"]}
    assert answers(tokenizer, [USER, echo, USER, echo]) == ["What is 2 + 2?<|im_end|>"] * 2


def test_harmony():
    """The header of a channel is generated too; thoughts of earlier turns are left out, and only the last answer ends
    the generation for good."""
    tokenizer = cases.tokenizer("ranks")
    early = ANSWER | {"reasoning_content": "2 and 2"}
    assert answers(tokenizer, [USER, early, AGAIN, THOUGHT], date="2026-01-01") == [
        "<|channel|>final<|message|>It is four.<|end|>",
        "<|channel|>analysis<|message|>3 and 3<|end|><|start|>assistant<|channel|>final<|message|>Six<|return|>",
    ]
    call = {"role": "assistant", "tool_calls": [chats.CALL]}
    found = answers(tokenizer, [USER, call, {"role": "tool", "content": "x"}, MORE], tools=[chats.TOOL], date="2026")
    assert found[0].startswith(("<|channel|>", " to=functions.get_weather<|channel|>"))
    assert found[0].endswith("<|call|>")
    assert found[1] == "<|channel|>final<|message|>Six<|return|>"

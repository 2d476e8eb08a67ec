"""Harmony: conversations to ids and generated ids to messages, as recorded from openai-harmony; and chats in its terms.

The vocabulary is a small one with harmony's special tokens, so what is compared is text; `test_harmony_oracle` has ids.
"""

import json
from datetime import date

import pytest

from pipeline.errors import ConfigError, SourceError, StageError
from plugins.formats.gguf.tokenizer import from_kv
from plugins.tokenizers.channels import ChannelText
from plugins.tokenizers.chat_harmony import conversation_of
from plugins.tokenizers.harmony import Developer, Harmony, Message, System
from plugins.tokenizers.harmony_parse import Parser
from plugins.tokenizers.harmony_tools import Namespace, Tool
from tests.cases import harmony as cases
from tests.cases import tokenizers

FIRST = 265 - 199998  # the small vocabulary's special tokens have their ids, less so much


@pytest.fixture(scope="module")
def harmony():
    return Harmony(tokenizers.tokenizer("ranks"))


def text_of(harmony, ids):
    return harmony.tokenizer.decode(ids, skip_special=False)


def test_ends(harmony):
    """Only <|return|> and <|call|> end a generation; after <|end|> the model goes on."""
    assert harmony.stop == (200002 + FIRST, 200012 + FIRST)
    assert harmony.tokenizer.eos == (200002 + FIRST, 199999 + FIRST, 200012 + FIRST)
    assert 200007 + FIRST not in harmony.tokenizer.eos


def test_ends_in_gguf():
    """The same when the tokenizer comes out of a GGUF file; other models do end with <|end|>."""
    template = ("string", "{{ '<|start|><|message|><|end|><|return|><|call|>' }}")
    for tokens, ends in (
        (["<|return|>", "<|end|>", "<|call|>", "<|start|>", "<|message|>"], [0, 2]),
        (["<|endoftext|>", "<|end|>", "a"], [0, 1]),  # Phi 3
    ):
        kv = {"model": ("string", "gpt2"), "pre": ("string", "gpt-4o"), "tokens": ("array:string", tokens)}
        kv |= {"merges": ("array:string", []), "token_type": ("array:int32", [3] * len(tokens))}
        kv = {f"tokenizer.ggml.{k}": v for k, v in kv.items()} | {"tokenizer.chat_template": template}
        files = from_kv(kv, {"max_position_embeddings": 8, "eos_token_id": 0})
        assert json.loads(files["generation_config.json"])["eos_token_id"] == ends


@pytest.mark.parametrize("name", cases.CONVERSATIONS)
def test_conversations(harmony, name):
    conversation, expected = cases.CONVERSATIONS[name], cases.recorded()["conversations"][name]
    assert text_of(harmony, harmony.prompt(conversation)) == expected["text"]
    assert text_of(harmony, harmony.training(conversation)) == expected["training"]
    assert text_of(harmony, harmony.render(conversation, drop_analysis=False)) == expected["all"]


def test_text_is_never_a_token(harmony):
    text = "".join(harmony.ids)
    ids = harmony.render([Message("user", text)])
    assert [i for i in ids if i >= 265] == [harmony.ids[t] for t in ("<|start|>", "<|message|>", "<|end|>")]
    assert Parser(harmony, None).parse(ids) == [Message("user", text)]


@pytest.mark.parametrize("name", cases.GENERATED)
def test_generated(harmony, name):
    (text, role), expected = cases.GENERATED[name], cases.recorded()["generated"][name]
    for word, strict in (("strict", True), ("lenient", False)):
        ids = harmony.tokenizer.encode(text)
        if expected[word] is None:
            with pytest.raises(StageError, match="harmony: "):
                Parser(harmony, role, strict=strict).parse(ids)
        else:
            assert [cases.fields(m) for m in Parser(harmony, role, strict=strict).parse(ids)] == expected[word]


def test_there_and_back(harmony):
    """What was rendered parses to the same messages (a recipient of all is not written)."""
    for conversation in cases.CONVERSATIONS.values():
        messages = [m for m in conversation if isinstance(m.content, str) and m.recipient != "all" and m.role != "user"]
        parsed = Parser(harmony, None).parse(harmony.render(messages, drop_analysis=False))
        expected = [cases.fields(m) for m in messages]
        assert [f[:4] + f[5:] for f in map(cases.fields, parsed)] == [f[:4] + f[5:] for f in expected]


def test_as_it_comes(harmony):
    """Text belongs to a channel before its message is complete, and a character is never cut."""
    parser, texts, ended = Parser(harmony), {}, []
    for token in harmony.tokenizer.encode(cases.GENERATED["answer"][0]):
        delta = parser.push(token)
        assert "\ufffd" not in delta.text
        texts[delta.channel] = texts.get(delta.channel, "") + delta.text
        if delta.text == "T":
            assert parser.current == Message("assistant", "T", "analysis")
            assert parser.messages == []
        ended += [delta.message.channel] if delta.done else []
    assert texts == {None: "", "analysis": "Think 日本🦙", "final": "Four."}
    assert ended == ["analysis", "final"]
    assert parser.current is None
    parser = Parser(harmony)
    for token in [*harmony.tokenizer.encode("<|channel|>final<|message|>x"), "日".encode()[0]]:
        parser.push(token)
    end = parser.end()
    assert (end.text, end.done, parser.messages[-1].content) == ("\ufffd", True, "x\ufffd")


def test_as_people_read_it(harmony):
    """Channels are marked, an answer alone is not, and the answer is known apart."""

    def said(text):
        stream = ChannelText(harmony.tokenizer)
        shown = "".join(map(stream.push, harmony.tokenizer.encode(text))) + stream.end()
        return shown, stream.answer, [m.channel for m in stream.messages]

    thought = "<|channel|>analysis<|message|>Think 日本🦙<|end|><|start|>assistant<|channel|>final<|message|>Four."
    assert said(f"{thought}<|return|>") == ("[analysis] Think 日本🦙\n[final] Four.", "Four.", ["analysis", "final"])
    assert said(thought) == ("[analysis] Think 日本🦙\n[final] Four.", "Four.", ["analysis", "final"])
    assert said("<|channel|>final<|message|>Four.<|return|>") == ("Four.", "Four.", ["final"])
    assert said("<|channel|>analysis<|message|>Thi") == ("[analysis] Thi", None, ["analysis"])
    assert said("<|channel|>anal") == ("", None, [])
    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    assert said(call) == ("[commentary functions.f] {}", None, ["commentary"])
    shown, answer, _ = said("<|channel|>final<|message|>Four.<|end|>stray text")
    assert shown.startswith("Four.\n[malformed] s")
    assert shown.endswith("stray text")
    assert answer == "Four."


def test_what_is_refused(harmony):
    for make, message in (
        (lambda: Message("bot"), "role='bot': no such role"),
        (lambda: Message("user", System()), "System is the content of a message with role='system', not 'user'"),
        (lambda: Message("system", Developer()), "Developer is the content of a message with role='developer'"),
        (lambda: System(effort="mid"), "effort='mid': no such effort.*medium"),
        (lambda: harmony.render([Message("tool", "x")]), "needs the tool's name"),
    ):
        with pytest.raises(ConfigError, match=message):
            make()
    with pytest.raises(SourceError, match=r"it has no <\|start\|>, <\|channel\|>"):
        Harmony(tokenizers.tokenizer("tiny"))


CHAT = [
    {"role": "system", "content": "Be nice."},
    {"role": "user", "content": [{"type": "text", "text": "Where "}, {"type": "text", "text": "am I?"}]},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I have to ask.",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "get_location", "arguments": {}}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": '{"city": "Zürich"}'},
]
TOOLS = [{"type": "function", "function": {"name": "get_location", "description": cases.LOCATION.description}}]


def test_a_chat_is_a_conversation():
    given = {"tools": TOOLS, "reasoning_effort": "high", "date": "2025-06-28"}
    assert conversation_of(CHAT, **given) == cases.CALL
    answer = {"role": "assistant", "content": "In Zürich."}
    assert conversation_of([*CHAT, answer], **given) == cases.CONVERSATIONS["answered"]
    plain = conversation_of(CHAT[1:2], model_identity="You are a cat.")
    today = System(identity="You are a cat.", date=date.today().isoformat())
    assert plain == [Message("system", today), Message("user", "Where am I?")]
    call = CHAT[2] | {"tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}], "content": "Wait."}
    assert conversation_of([call], date="x")[1:] == [
        Message("assistant", "I have to ask.", "analysis"),
        Message("assistant", "Wait.", "commentary"),
        Message("assistant", '{"a": 1}', "commentary", "functions.f", "<|constrain|>json"),
    ]
    only_tools = conversation_of(CHAT[1:2], tools=TOOLS, date="x")[1]
    assert only_tools == Message("developer", Developer(None, (Namespace("functions", None, (cases.LOCATION,)),)))
    assert conversation_of(CHAT[1:2], tools=[{"name": "f", "parameters": {"type": "object"}}], date="x")[1] == Message(
        "developer", Developer(None, (Namespace("functions", None, (Tool("f", "", {"type": "object"}),)),))
    )


def test_a_tokenizer_without_template_chats_in_harmony(harmony):
    tokenizer = tokenizers.tokenizer("ranks")
    assert tokenizer.has_chat_template
    given = {"tools": TOOLS, "reasoning_effort": "high", "date": "2025-06-28"}
    assert tokenizer.chat(CHAT, **given) == harmony.prompt(cases.CALL)
    assert tokenizer.chat(CHAT, add_generation_prompt=False, **given) == harmony.render(cases.CALL)
    with pytest.raises(ConfigError, match="harmony has no variable 'effort'; did you mean 'reasoning_effort'"):
        tokenizer.chat(CHAT, effort="high")
    for messages, message in (
        ([], "at least one message"),
        ([{"role": "user", "content": "x"}, {"role": "system", "content": "x"}], "role='system': system and developer"),
        ([{"role": "user", "content": [{"image": 1}]}], "should be text, or parts with `text`"),
        ([{"role": "tool", "content": "x"}], "needs `name`, or to follow the call it answers"),
    ):
        with pytest.raises(ConfigError, match=message):
            tokenizer.chat(messages)
    with pytest.raises(ConfigError, match="a tool should have a name"):
        tokenizer.chat(CHAT, tools=[{"type": "function"}])
    assert json.dumps(CHAT)  # plain values all along

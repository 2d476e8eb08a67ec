"""Harmony as the package openai-harmony renders and parses it, id for id, with the real vocabulary.

Needs o200k_base.tiktoken in the folder that WEIGHTMILL_MODELS names, and for some tests the package itself.
`python -m tests.oracle.test_harmony` records tests/cases/harmony.json with it anew.
"""

import json
import os
import random
from pathlib import Path

import pytest

from pipeline.errors import StageError
from plugins.engine.options import Sampling
from plugins.tokenizers.harmony import Developer, Harmony, Message, System
from plugins.tokenizers.harmony_parse import Parser
from plugins.tokenizers.load import load_tokenizer
from tests.cases import harmony as cases
from tests.cases import scripted

FOLDER = Path(os.environ.get("WEIGHTMILL_MODELS", ".models")).absolute()
pytestmark = [
    pytest.mark.download,
    pytest.mark.skipif(
        not (FOLDER / "o200k_base.tiktoken").is_file(), reason="o200k_base.tiktoken is not in WEIGHTMILL_MODELS"
    ),
]
WORDS = ("<|channel|>", "final", "analysis", " to=", "functions.a", " json", "<|constrain|>", "<|message|>", "<|end|>")
WORDS += ("<|start|>", "assistant", "user", "hi ", "日本", "<|return|>", " ", "\n", "commentary", "<|call|>", "tool")


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer({}, {"model_type": "gpt_oss", "eos_token_id": 200002}, vocabulary=str(FOLDER))


@pytest.fixture(scope="module")
def harmony(tokenizer):
    return Harmony(tokenizer)


def test_the_vocabulary(tokenizer, harmony):
    assert tokenizer.encode("hello world") == [24912, 2375]
    assert (tokenizer.vocab_size, tokenizer.bos, tokenizer.eos) == (201088, 199998, (200002, 199999, 200012))
    assert harmony.stop == (200002, 200012)


@pytest.mark.parametrize("name", cases.CONVERSATIONS)
def test_ids(harmony, name):
    conversation, expected = cases.CONVERSATIONS[name], cases.recorded()["conversations"][name]
    assert harmony.prompt(conversation) == expected["ids"]


def test_a_chat_of_three_turns(tokenizer, package):
    """What a model reads in each turn is what the package renders of all but the thoughts of answered ones, and its end
    tokens end an answer."""
    package, encoding = package
    turn = tokenizer.encode(
        "<|channel|>analysis<|message|>Hm 日本.<|end|><|start|>assistant<|channel|>final<|message|>Ja."
    )
    turn += encoding.stop_tokens_for_assistant_actions()[:1]
    talk, model = scripted.conversation(tokenizer, [turn] * 3, harmony=True)
    messages, theirs = [], [_theirs(package, Message("system", System(date="2025-06-28")))]
    for question in ("one", "two", "three"):
        messages.append({"role": "user", "content": question})
        theirs.append(_theirs(package, Message("user", question)))
        expected = encoding.render_conversation_for_completion(
            package.Conversation.from_messages(theirs), package.Role.ASSISTANT
        )
        reply = talk.reply(messages, Sampling(max_tokens=99), on_text=lambda label, text: None, date="2025-06-28")
        assert (reply.text, reply.thought, reply.finish, reply.tokens) == ("Ja.", "Hm 日本.", "end", len(expected))
        assert expected[-len(model.read[-1]) :] == model.read[-1]
        messages.append({"role": "assistant", "content": reply.text, "thinking": reply.thought})
        theirs.append(_theirs(package, Message("assistant", reply.text, "final")))


@pytest.fixture(scope="module")
def package():
    """openai_harmony and its encoding; it finds the vocabulary by a variable, and would download it otherwise."""
    import openai_harmony as package

    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(FOLDER)
    try:
        yield package, package.load_harmony_encoding("HarmonyGptOss")
    finally:
        del os.environ["TIKTOKEN_ENCODINGS_BASE"]


@pytest.mark.oracle
def test_the_package_renders_so(harmony, package):
    for conversation in cases.CONVERSATIONS.values():
        theirs = package[0].Conversation.from_messages([_theirs(package[0], m) for m in conversation])
        for drop in (True, False):
            config = package[0].RenderConversationConfig(auto_drop_analysis=drop)
            assert harmony.render(conversation, drop_analysis=drop) == package[1].render_conversation(theirs, config)
            assert harmony.training(conversation, drop_analysis=drop) == package[1].render_conversation_for_training(
                theirs, config
            )


@pytest.mark.oracle
def test_the_package_parses_so(harmony, package):
    """Random sequences of what messages are made of, and random bytes: the same messages, or an error from both."""
    draw, parsed = random.Random(7), 0
    for round_ in range(3000):
        role, strict = draw.choice([None, "assistant", "tool", "user"]), draw.random() < 0.5
        ids = harmony.tokenizer.encode("".join(draw.choices(WORDS, k=draw.randint(1, 12))))
        if round_ % 6 == 0:
            ids = [200008, *draw.choices([*range(256), *harmony.tokenizer.encode("日本🦙é ok\n")], k=12), 200007]
        expected = _parsed_by(package, ids, role, strict)
        if expected is None:
            with pytest.raises(StageError):
                Parser(harmony, role, strict=strict).parse(ids)
        else:
            parsed += len(expected) > 0
            assert [cases.fields(m) for m in Parser(harmony, role, strict=strict).parse(ids)] == expected
    assert parsed > 500


def _parsed_by(package, ids, role, strict):
    parser = package[0].StreamableParser(package[1], role and package[0].Role(role), strict=strict)
    try:
        for token in ids:
            parser.process(token)
        parser.process_eos()
    except package[0].HarmonyError:
        return None
    return [
        [m.author.role.value, m.author.name, m.channel, m.recipient, m.content_type, "".join(c.text for c in m.content)]
        for m in parser.messages
    ]


def _theirs(package, message: Message):
    def namespaces(given):
        return {
            n.name: package.ToolNamespaceConfig(
                name=n.name,
                description=n.description,
                tools=[package.ToolDescription.new(t.name, t.description, parameters=t.parameters) for t in n.tools],
            )
            for n in given
        } or None

    content = message.content
    if isinstance(content, System):
        content = package.SystemContent(
            model_identity=content.identity,
            reasoning_effort=content.effort and package.ReasoningEffort(content.effort.capitalize()),
            conversation_start_date=content.date,
            knowledge_cutoff=content.cutoff,
            channel_config=package.ChannelConfig(
                valid_channels=list(content.channels), channel_required=content.channel_required
            ),
            tools=namespaces(content.tools),
        )
    elif isinstance(content, Developer):
        content = package.DeveloperContent(instructions=content.instructions, tools=namespaces(content.tools))
    author = package.Author(role=package.Role(message.role), name=message.name)
    theirs = package.Message.from_author_and_content(author, content)
    theirs.channel, theirs.recipient, theirs.content_type = message.channel, message.recipient, message.content_type
    return theirs


def record() -> None:
    """Write tests/cases/harmony.json as the package has it."""
    import openai_harmony as package

    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(FOLDER)
    encoding = package.load_harmony_encoding("HarmonyGptOss")
    conversations: dict[str, object] = {}
    generated: dict[str, object] = {}
    for name, conversation in cases.CONVERSATIONS.items():
        theirs = package.Conversation.from_messages([_theirs(package, m) for m in conversation])
        keep = package.RenderConversationConfig(auto_drop_analysis=False)
        ids = encoding.render_conversation_for_completion(theirs, package.Role.ASSISTANT)
        training, everything = (
            encoding.render_conversation_for_training(theirs),
            encoding.render_conversation(theirs, keep),
        )
        texts = {"text": ids, "training": training, "all": everything}
        conversations[name] = {k: encoding.decode(v) for k, v in texts.items()} | {"ids": ids}
    for name, (text, role) in cases.GENERATED.items():
        ids = encoding.encode(text, allowed_special="all")
        generated[name] = {
            word: _parsed_by((package, encoding), ids, role, strict)
            for word, strict in (("strict", True), ("lenient", False))
        }
    parts = {"conversations": conversations, "generated": generated}
    lines = [
        f'"{part}": {{\n' + ",\n".join(f"{json.dumps(n)}: {json.dumps(v)}" for n, v in entries.items()) + "\n}"
        for part, entries in parts.items()
    ]
    (Path(cases.__file__).parent / "harmony.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    record()

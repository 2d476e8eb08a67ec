"""A chat with a gpt-oss, whatever it writes: channels apart, what is kept of them, and what ends an answer."""

from typing import Any

import pytest

from pipeline.errors import ConfigError
from plugins.engine import pace
from plugins.engine.options import Sampling
from plugins.engine.sizes import MOST_STEPS
from tests.cases import scripted, tokenizers

THOUGHT = "<|channel|>analysis<|message|>Think 日本.<|end|><|start|>assistant"
ANSWER = "<|channel|>final<|message|>Four 🦙.<|return|>"
MANY = Sampling(max_tokens=500)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One byte a token, so that every character of more than one comes in parts, and harmony's own tokens."""
    return tokenizers.tokenizer("ranks")


def said_of(talk: Any, messages: list[dict[str, str]], how: Sampling = MANY, **given: Any) -> tuple[Any, list[Any]]:
    shown: list[Any] = []
    reply = talk.reply(messages, how, on_text=lambda label, text: shown.append((label, text)), **given)
    return reply, shown


def test_channels_are_apart_and_end_tokens_end(tokenizer: Any) -> None:
    """What would come after <|return|> is never seen, and no character is shown in halves."""
    turn = tokenizer.encode(THOUGHT + ANSWER + "<|start|>assistant<|channel|>final<|message|>more")
    talk, _ = scripted.conversation(tokenizer, [turn], harmony=True)
    reply, shown = said_of(talk, [{"role": "user", "content": "2+2?"}])
    assert (reply.text, reply.thought, reply.finish) == ("Four 🦙.", "Think 日本.", "end")
    labels = {label: "".join(text for one, text in shown if one == label) for label, _ in shown}
    assert labels == {"analysis": "Think 日本.", "final": "Four 🦙."}
    assert not any("\ufffd" in text for _, text in shown)


def test_thoughts_are_dropped_once_there_is_an_answer(tokenizer: Any) -> None:
    """Of every turn: openai-harmony itself drops those before the first answer only."""
    turns = [tokenizer.encode(THOUGHT + ANSWER)] * 3
    talk, model = scripted.conversation(tokenizer, turns, harmony=True)
    messages: list[dict[str, str]] = []
    for n in range(3):
        messages.append({"role": "user", "content": f"question {n}"})
        asked = [{k: v for k, v in m.items() if k != "thinking"} for m in messages]
        reply, _ = said_of(talk, messages)
        assert reply.tokens == len(tokenizer.chat(asked))
        messages.append({"role": "assistant", "content": reply.text, "thinking": reply.thought or ""})
    read = tokenizer.decode(model.read[2], skip_special=False)
    assert "question 2" in read
    assert "Think" not in read
    # What was read in the second turn is not read again, but for its answer, before which a thought is gone.
    assert "question 1" not in read


def test_however_many_steps_a_program_makes(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One, or as many as there may be, with an end in the middle of them: what comes is the same, and what stays."""
    whole, found = tokenizer.encode(THOUGHT + ANSWER), []
    for at_once_s, most in ((0.0, 1), (float("inf"), MOST_STEPS)):
        monkeypatch.setattr(pace, "AT_ONCE_S", at_once_s)
        talk, model = scripted.conversation(tokenizer, [whole] * 3, harmony=True)
        messages: list[dict[str, str]] = []
        for most_tokens in (500, 20, 500):
            messages.append({"role": "user", "content": "2+2?"})
            reply, shown = said_of(talk, messages, Sampling(max_tokens=most_tokens))
            messages.append({"role": "assistant", "content": reply.text, "thinking": reply.thought})
            found.append((reply.text, reply.thought, reply.finish, "".join(text for _, text in shown)))
        found.append(model.read)
        assert max(model.counts) == most
    assert found[:4] == found[4:]
    assert [one[:3] for one in found[:3]] == [
        ("Four 🦙.", "Think 日本.", "end"), ("", "Think 日本", "length"), ("Four 🦙.", "Think 日本.", "end"),
    ]  # fmt: skip


def test_a_thought_that_is_cut_off_is_no_answer(tokenizer: Any) -> None:
    """It stays a thought, and the model may go on from it."""
    turn = tokenizer.encode(THOUGHT)
    talk, model = scripted.conversation(tokenizer, [turn, tokenizer.encode(ANSWER)], harmony=True)
    first = {"role": "user", "content": "2+2?"}
    begun = tokenizer.encode("<|channel|>analysis<|message|>Think")
    reply, _ = said_of(talk, [first], Sampling(max_tokens=len(begun)))
    assert (reply.text, reply.thought, reply.finish) == ("", "Think", "length")
    cut = {"role": "assistant", "content": reply.text, "thinking": reply.thought}
    said_of(talk, [first, cut, {"role": "user", "content": "Well?"}])
    read = tokenizer.decode(model.read[1], skip_special=False)
    # Up to "Thin" it is as it was read and written, and no empty answer follows it.
    assert read == "k<|end|><|start|>user<|message|>Well?<|end|><|start|>assistant"


def test_the_oldest_is_left_out_when_there_is_no_room(tokenizer: Any) -> None:
    """As many turns as make half of it free; the instructions stay, and one that is alone too long is an error."""
    talk, model = scripted.conversation(tokenizer, [tokenizer.encode(ANSWER)] * 2, harmony=True, room=1000)
    system = {"role": "system", "content": "Be brief."}
    turns = [{"role": r, "content": f"{r} {n} {'x' * 50}"} for n in range(6) for r in ("user", "assistant")]
    question = {"role": "user", "content": "And now?"}
    reply, _ = said_of(talk, [system, *turns, question])
    assert reply.left_out % 2 == 0
    assert 0 < reply.left_out < len(turns)
    read = tokenizer.decode(model.read[0], skip_special=False)
    assert "Be brief." in read
    assert "user 0" not in read
    assert "user 5" in read
    assert reply.tokens <= 500
    with pytest.raises(ConfigError, match="tokens, and the model reads 1,000, its answer"):
        said_of(talk, [system, *turns, {"role": "user", "content": "x" * 1000}])
    fits, _ = said_of(talk, [system, *turns[reply.left_out :], question])
    assert fits.left_out == 0


def test_an_answer_ends_where_the_room_does(tokenizer: Any) -> None:
    long = tokenizer.encode("<|channel|>final<|message|>" + "x" * 900)
    talk, _ = scripted.conversation(tokenizer, [long], harmony=True, room=600)
    reply, _ = said_of(talk, [{"role": "user", "content": "Well?"}], Sampling(max_tokens=900))
    assert reply.finish == "room"
    assert reply.tokens + reply.timings.new_tokens == 600


def test_ctrl_c_while_a_long_text_is_read(tokenizer: Any) -> None:
    """Between its parts; what was read stays read."""
    talk, model = scripted.conversation(tokenizer, [tokenizer.encode(ANSWER)] * 2, harmony=True)
    messages = [{"role": "user", "content": "x" * 3000}]
    reply, shown = said_of(talk, messages, wanted=lambda: False)
    assert (reply.text, reply.finish, shown, len(model.read[0])) == ("", "interrupted", [], 1024)
    model._begins = True
    again, _ = said_of(talk, messages)
    assert again.timings.prompt_tokens == again.tokens - 1024
    assert again.text == "Four 🦙."

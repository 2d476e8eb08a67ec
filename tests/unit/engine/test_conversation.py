"""Conversations: the cache is kept from turn to turn, and what comes is what comes without."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import pytest

from pipeline.errors import ConfigError
from plugins.engine.generate import generate
from plugins.engine.kept import Kept
from plugins.engine.options import Sampling
from plugins.models.common.cache import Cache, LayerShape
from tests.cases import model_runs, two_layers

TEXT = "The people of the United States, and all those who went with them to the whale, have seen it. "


@pytest.fixture(scope="module")
def model() -> Any:
    """Half of the embedded gpt-oss, whose window is 64."""
    return model_runs.engine().load(model_runs.checkpoint(two_layers.folder()))


@pytest.fixture(autouse=True)
def quick() -> Any:
    with model_runs.quick_compilation():
        yield


def test_a_turn_reads_what_is_new_and_says_the_same(model: Any) -> None:
    """Four turns far past the window; the second ends early, and the last takes back what was said. None has more than
    128 tokens, so that one program reads each of them alone, and others are those of the cache that is kept."""
    kept, how = Kept(), Sampling(max_tokens=8)
    said = model.tokenizer.encode(TEXT * 4)[:81]
    assert len(said) == 81
    generate(
        model.runtime, [said], Sampling(max_tokens=128 - 81), kept=kept, wanted=lambda: False
    )  # room for all turns
    read: list[int] = []

    def turn(ids: list[int], wanted: Any = lambda: True) -> list[int]:
        [done], timings = generate(model.runtime, [ids], how, kept=kept, wanted=wanted)
        [alone], _ = generate(model.runtime, [ids], how)
        assert done.tokens == alone.tokens[: len(done.tokens)]
        read.append(timings.prompt_tokens)
        return [*ids, *done.tokens]

    ids = turn(said)
    left = iter([True] * 6)
    cut = turn([*ids, *said[:9]], lambda: next(left, False))
    assert len(cut) == len(ids) + 9 + 7
    other = next(t for t in said if t != cut[-5])
    turn([*cut[:-5], other, *said[4:19]])
    turn([*said, *said[10:14]])
    # What a prediction follows from; the last token of the answer, which nobody asked what follows it, and what came;
    # what follows the second token of an answer; and what is not as it was.
    assert read == [1, 1 + 9, 16, 4]


def test_a_conversation_that_outgrows_its_cache(model: Any) -> None:
    kept, how = Kept(), Sampling(max_tokens=8)
    said = model.tokenizer.encode(TEXT * 9)
    generate(model.runtime, [said[:60]], how, kept=kept)
    [second], timings = generate(model.runtime, [said[:180]], how, kept=kept)
    assert timings.prompt_tokens == 180 - 60  # what was read is not read again
    assert second.tokens == generate(model.runtime, [said[:180]], how)[0][0].tokens


@pytest.mark.repeats
def test_texts_are_continued_without_a_template(model: Any) -> None:
    talk = model.conversation()
    assert (talk.chat, talk.channels, talk.room) == (False, False, 2048)
    parts: list[tuple[str, str]] = []
    say = {"on_text": lambda label, text: parts.append((label, text))}
    reply = talk.reply([{"role": "user", "content": TEXT}], Sampling(max_tokens=6), **say)
    assert reply.text == str(model.generate(TEXT, max_tokens=6))
    assert "".join(text for _, text in parts) == reply.text
    assert {label for label, _ in parts} == {""}
    more = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": reply.text}]
    again = talk.reply([*more, {"role": "user", "content": " Then"}], Sampling(max_tokens=6), **say)
    assert again.timings.prompt_tokens <= 5
    with pytest.raises(ConfigError, match=r"has 2,\d\d\d tokens, and the model reads 2,048"):
        talk.reply([{"role": "user", "content": TEXT * 100}], Sampling(), **say)
    assert talk.reply(more, Sampling(max_tokens=4000), wanted=lambda: False, **say).finish == "interrupted"


def test_a_larger_cache_holds_what_the_smaller_did() -> None:
    """And nothing in the slots that it has more."""
    small = replace(Cache.create([LayerShape(1, 2)], 1, 2, "f32"), positions={2: jnp.array([[0, 1]])})
    large = small.grown(4)
    assert large.positions[4].tolist() == [[0, 1, -1, -1]]
    assert large.layers[0].k.shape == (1, 4, 1, 2)

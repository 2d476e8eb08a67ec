"""Chats in files: messages, prompts with completions, tools; weights on the answers; what is wrong and where."""

import json

import numpy as np
import pytest

from pipeline.errors import ConfigError, PlanError
from plugins.data.chats import Chats
from tests.cases import chats, tokenizers
from tests.cases.opened import opened
from tests.unit.data.test_answers import AGAIN, ANSWER, MORE, USER, loaded

CHATML = chats.TEMPLATES["chatml"]


def written(tmp_path, *lines, name="a.jsonl"):
    path = tmp_path / name
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def learned(tokenizer, examples):
    """The texts of the targets that count, of each row and document."""
    batch = examples.batch(np.arange(len(examples)))
    found = []
    for targets, weights, segments in zip(batch["targets"], batch["weights"], batch["segments"], strict=True):
        for segment in range(1, segments.max() + 1):
            here = (segments == segment) & (weights > 0)
            found.append(tokenizer.decode(targets[here].tolist(), skip_special=False))
    return sorted(found)


def test_what_the_assistant_says_is_learned(tmp_path):
    tokenizer = loaded(CHATML)
    file = written(
        tmp_path,
        {"messages": [USER, ANSWER, AGAIN, MORE]},
        {"prompt": "2 + 2?", "completion": "It is four."},
        {"prompt": [USER, ANSWER, AGAIN], "completion": [MORE], "id": 7},
    )
    data = Chats((file,), length=400)
    assert not data.check(None)
    splits = opened(data, tmp_path, tokenizer)
    assert learned(tokenizer, splits.train) == sorted(
        ["It is four.<|im_end|>Six<|im_end|>", "It is four.<|im_end|>", "It is four.<|im_end|>Six<|im_end|>"]
    )
    assert data.plan(None).specs == splits.train.specs


def test_a_chat_longer_than_a_row_loses_nothing(tmp_path):
    tokenizer = loaded(CHATML)
    data = Chats((written(tmp_path, {"messages": [USER, ANSWER, AGAIN, MORE] * 3}),), length=17)
    batch = (train := opened(data, tmp_path, tokenizer).train).batch(np.arange(len(train)))
    assert batch["weights"].sum() == 3 * len(tokenizer.encode("It is four.<|im_end|>Six<|im_end|>"))


def test_rows_of_prompts_alone_are_no_examples_and_what_is_cut_is_said(tmp_path):
    tokenizer, long = loaded(CHATML), {"role": "user", "content": "2 + 2? " * 30}
    file = written(tmp_path, {"messages": [long, ANSWER]}, {"messages": [USER, ANSWER]})
    splits = opened(Chats((file,), length=100), tmp_path, tokenizer)
    assert (splits.train.batch(np.arange(len(splits.train)))["weights"].sum(axis=1) > 0).all()
    answer = len(tokenizer.encode("It is four.<|im_end|>"))
    assert splits.facts["tokens of answers, which alone are learned"] == 2 * answer
    assert splits.facts["chats longer than a row, in pieces without what came before"] == 1


def test_parquet_is_no_chats(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1\x15\x04")
    (problem,) = Chats((str(path),)).check(None)
    assert problem.message.startswith("is Parquet; data=text reads that")


def test_harmony_and_variables(tmp_path):
    tokenizer = tokenizers.tokenizer("ranks")
    file = written(tmp_path, {"messages": [USER, ANSWER]})
    texts = []
    for effort in ("low", "high"):
        data = Chats((file,), 4096, variables={"date": "2026-01-01", "reasoning_effort": effort})
        train = opened(data, tmp_path, tokenizer).train
        batch = train.batch(np.arange(len(train)))
        texts.append(tokenizer.decode(batch["tokens"][0].tolist(), skip_special=False))
        assert learned(tokenizer, train) == ["<|channel|>final<|message|>It is four.<|return|>"]
    assert "Reasoning: low" in texts[0]
    assert "Reasoning: high" in texts[1]


def test_tools(tmp_path):
    tokenizer = loaded(chats.TEMPLATES["thinking"])
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": [chats.CALL]}]
    file = written(tmp_path, {"messages": messages, "tools": [chats.TOOL]})
    train = opened(Chats((file,), 4096), tmp_path, tokenizer).train
    shown = tokenizer.decode(train.batch(np.array([0]))["tokens"][0].tolist(), skip_special=False)
    assert "<tools>" in shown
    (said,) = learned(tokenizer, train)
    assert '{"name": "get_weather"' in said
    assert said.endswith("</tool_call><|im_end|>")


BAD = {
    "no JSON": ('{"messages": [', "not JSON"),
    "another kind": (
        {"text": "a", "id": 1},
        "has neither 'messages' nor 'prompt' and 'completion', but 'text', 'id'; data=text is",
    ),
    "no list": ({"messages": "hi"}, "'messages' is 'hi'; a list of messages is expected"),
    "empty": ({"messages": []}, "'messages' is []; a list"),
    "no role": ({"messages": [{"content": "x"}]}, "message 1 is {'content': 'x'}; an object with 'role'"),
    "content": ({"messages": [USER, {"role": "assistant", "content": 3}]}, "message 2: 'content' is 3; a text"),
    "no answer": ({"messages": [USER, USER]}, "the assistant says nothing, so there is nothing to learn (roles: user)"),
    "an empty answer": ({"prompt": "a", "completion": ""}, "the assistant says nothing"),
    "half a pair": ({"prompt": "a"}, "has neither 'messages' nor"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_with_file_and_line(name, tmp_path):
    line, said = BAD[name]
    data = Chats((written(tmp_path, {"messages": [USER, ANSWER]}, line),), 64)
    (problem,) = data.check(None)
    assert problem.where == f"{tmp_path}/a.jsonl, line 2"
    assert said in problem.message
    with pytest.raises(PlanError) as error:
        opened(data, tmp_path, loaded(CHATML))
    assert error.value.problems == (problem,)


def test_what_the_template_refuses_is_said_with_its_line(tmp_path):
    turns = [USER, USER, ANSWER]
    file = written(tmp_path, {"messages": [USER, ANSWER]}, {"messages": turns}, {"messages": turns})
    with pytest.raises(PlanError) as error:
        opened(Chats((file,), 64), tmp_path, loaded(chats.TEMPLATES["turns"]))
    assert [p.where.rpartition(", ")[2] for p in error.value.problems] == ["line 2", "line 3"]
    assert "roles must alternate, found user" in error.value.problems[0].message


def test_no_template(tmp_path):
    data = Chats((written(tmp_path, {"messages": [USER, ANSWER]}),), 64)
    for tokenizer in (None, tokenizers.tokenizer("byte_level")):
        with pytest.raises(ConfigError, match=r"tokenizer\.chat_template=FILE names one"):
            opened(data, tmp_path, tokenizer)


def test_held_out_chats(tmp_path):
    lines = [{"prompt": f"{n} + 1?", "completion": f"{n + 1}"} for n in range(60)]
    splits = opened(Chats((written(tmp_path, *lines),), 64, held_out=0.3), tmp_path, loaded(CHATML))
    counts = [len(e.corpus.lengths) for e in (splits.train, splits.held_out)]
    assert sum(counts) == 60
    assert 8 < counts[1] < 30

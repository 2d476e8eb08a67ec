"""Generating: what comes is what the model says, whatever the batch, the buckets and the pieces of text."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.running import text_stream
from plugins.engine import pace as engine_pace
from plugins.engine import sampling as samplers
from plugins.engine import sizes
from plugins.engine.generate import _keys, generate
from plugins.engine.kept import Kept
from plugins.engine.options import Sampling
from plugins.engine.pace import Pace
from plugins.engine.runtime import Runtime
from tests.cases import model_runs, two_layers

EXPERTS = "[{match: '*.mlp.experts.*_proj', to: quant}, {match: '*', to: keep}]"
TEXTS = ("The people of the United States", "Congress", "It was the best of times, and we must not forget that a whale")
WARM = {"temperature": 0.9, "top_p": 0.9, "max_tokens": 12}


@pytest.fixture(scope="module")
def model() -> Any:
    """Half of the embedded gpt-oss, with MXFP4 experts."""
    return model_runs.engine().load(model_runs.checkpoint(two_layers.folder(), quant="mxfp4", rules=EXPERTS))


@pytest.fixture(scope="module")
def prompts(model: Any) -> list[list[int]]:
    found = [model.tokenizer.encode(t) for t in TEXTS]
    assert len({len(p) for p in found}) == 3
    return found


@pytest.fixture
def quick() -> Iterator[None]:
    with model_runs.quick_compilation():
        yield


def tokens(model: Any, prompts: list[list[int]], **options: Any) -> list[tuple[int, ...]]:
    return [c.tokens for c in generate(model.runtime, prompts, Sampling(**options))[0]]


def assert_likeliest(logits: Any, chosen: Any, slack: float = 1e-4) -> None:
    """Each chosen token is the argmax, or so close to it that float32 cannot tell."""
    behind = logits.max(axis=-1) - np.take_along_axis(logits, np.asarray(chosen)[:, None], -1)[:, 0]
    assert behind.max() <= slack, (int(behind.argmax()), float(behind.max()))


@pytest.fixture
def optimized_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all programs those that are called most, or looked at."""
    steps = Runtime.steps

    def optimized(self: Runtime, *args: Any) -> Any:
        with model_runs.quick_compilation(False):
            return steps(self, *args)

    monkeypatch.setattr(Runtime, "steps", optimized)


@pytest.mark.usefixtures("optimized_steps")
def test_hundreds_of_tokens(prompts: list[list[int]], thorough: bool) -> None:
    """Far past the sliding window (64), whose ring goes round again and again, and past the original context (256). Of
    the whole model: half of it soon says the same."""
    count = 700 if thorough else 260
    model = model_runs.engine().load(model_runs.checkpoint(two_layers.TINY, quant="mxfp4", rules=EXPERTS))
    config = model.runtime.config
    assert config["sliding_window"] == 64
    assert config["rope_parameters"]["original_max_position_embeddings"] == 256
    [done] = tokens(model, prompts[:1], max_tokens=count)
    assert len(done) == count
    ids = np.array([[*prompts[0], *done]], np.int32)
    logits = np.asarray(model.runtime.forward(ids, np.arange(ids.shape[1], dtype=np.int32)[None]))[0]
    n = len(prompts[0])
    assert_likeliest(logits[n - 1 : -1], done)
    assert len(set(done)) > 10


@pytest.mark.usefixtures("quick")
def test_company_changes_nothing(model: Any, prompts: list[list[int]], thorough: bool) -> None:
    company = [*prompts[::-1], prompts[0]]
    together = tokens(model, company, seed=3, **WARM)
    for alone, among in zip(company[: 3 if thorough else 1], together, strict=False):
        assert tokens(model, [alone], seed=3, **WARM) == [among]
    assert together[-1] != together[-2]


@pytest.mark.usefixtures("quick")
def test_best_of_n(model: Any, prompts: list[list[int]], thorough: bool) -> None:
    """The same prompt n times is n texts, and the k-th is the same whatever n is and whatever stands between; in
    `make test`, of batches that are filled up to four rows, for which there are programs."""
    first, other = prompts[:2]
    four = tokens(model, [first] * 4, seed=5, **WARM)
    assert len(set(four)) == 4
    for n in (3, 2) if thorough else (3,):
        assert tokens(model, [first] * n, seed=5, **WARM) == four[:n]
    mixed = tokens(model, [other, first, other, first], seed=5, **WARM)
    assert [mixed[1], mixed[3]] == four[:2]
    assert mixed[0] != mixed[2]


def test_keys_differ_by_seed_prompt_and_turn() -> None:
    prompts = [[1, 2, 3], [1, 2], [3, 2, 1], [1, 2, 3], [1, 2, 3], [1], [0, 1]]
    seeds = (0, 1, -1, 1 << 32, (1 << 32) - 1)
    found = [np.asarray(jax.random.key_data(_keys(seed, prompts, 8)))[:7] for seed in seeds]
    assert len({tuple(key) for keys in found for key in keys.tolist()}) == 7 * len(seeds)


@pytest.mark.usefixtures("quick")
def test_several_steps_in_a_program_are_the_same(
    model: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many at once, and when a text ends among them; the tokens and how many were asked for."""
    made: list[int] = []
    steps = Runtime.steps

    def counted(self: Runtime, count: int, *args: Any) -> Any:
        made.append(count)
        return steps(self, count, *args)

    monkeypatch.setattr(Runtime, "steps", counted)
    monkeypatch.setattr(engine_pace, "AT_ONCE_S", 0.0)
    options = {**WARM, "max_tokens": 24}
    model.runtime.paces.clear()
    alone, _ = generate(model.runtime, prompts, Sampling(**options), tokenizer=model.tokenizer)
    assert made == [1] * 23
    made.clear()
    monkeypatch.setattr(engine_pace, "AT_ONCE_S", 60.0)
    pieces: list[str] = []
    several, timings = generate(
        model.runtime, prompts, Sampling(**options), tokenizer=model.tokenizer,
        on_text=lambda row, text: pieces.append(text),
    )  # fmt: skip
    assert several == alone
    assert (max(made), sum(made), timings.steps) == (sizes.MOST_STEPS, 23, 23)
    assert len(pieces) > 24  # each token is told by itself
    assert made[0] == 1
    made.clear()
    assert generate(model.runtime, prompts, Sampling(**options), tokenizer=model.tokenizer)[0] == alone
    assert made[0] == sizes.MOST_STEPS  # as was right before
    said = alone[0].tokens
    at = next(at for at in range(9, 16) if said[at] not in said[:at])  # in the middle of a program
    [first, *_], _ = generate(model.runtime, prompts, Sampling(**options), ends={said[at]})
    assert (first.finish, first.tokens) == ("end", said[: at + 1])
    asked: list[int] = []
    [cut, *_], _ = generate(
        model.runtime, prompts, Sampling(**options), wanted=lambda: len(asked) < 7 and not asked.append(1)
    )
    assert (cut.finish, cut.tokens) == ("interrupted", said[:8])


@pytest.mark.usefixtures("quick")
def test_after_an_end_no_step_is_made(model: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """However many were asked for; and what is kept is what the cache holds, without the token that ended the text."""
    monkeypatch.setattr(engine_pace, "AT_ONCE_S", 60.0)
    options = {**WARM, "max_tokens": 24}
    [said] = tokens(model, prompts[:1], **options)
    at = next(at for at in range(9, 16) if said[at] not in said[:at])
    for end in (said[at], said[0]):  # in the middle of a program, and before the first
        kept, count = Kept(), said.index(end) + 1
        [done], timings = generate(model.runtime, prompts[:1], Sampling(**options), ends={end}, kept=kept)
        assert (done.finish, done.tokens) == ("end", said[:count])
        assert timings.steps > count
        assert kept.ids == [*prompts[0], *said[: count - 1]]
        [held] = kept._cache.positions.values()
        assert sorted(p for p in np.asarray(held)[0].tolist() if p >= 0) == [*range(len(kept.ids))]


@pytest.mark.usefixtures("optimized_steps")
def test_no_weight_is_made_wide_before_the_steps_of_a_program() -> None:
    """In bfloat16, for which XLA's CPU backend has few kernels: not even the embedding is kept as float32 meanwhile."""
    model = replace(model_runs.engine(), dtype="bf16").load(model_runs.checkpoint(two_layers.folder()))
    generate(model.runtime, [[1, 2]], Sampling(max_tokens=3))
    [step] = [program for key, program in model.runtime._programs.items() if key[0] == "step"]
    embedding = 4 * model.runtime.vocab * model.runtime.hidden
    assert 0 < step.memory_analysis().temp_size_in_bytes < embedding / 4


def test_pace_follows_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program takes about a twentieth of a second at most, of however many steps."""
    now = [0.0]
    monkeypatch.setattr(engine_pace.time, "perf_counter", lambda: now[0])
    pace = Pace(8)

    def after(each: float) -> int:
        now[0] += each * pace.steps
        pace.took(pace.steps)
        return pace.steps

    assert [after(0.002) for _ in range(4)] == [2, 4, 8, 8]
    assert [after(0.01) for _ in range(3)] == [4, 4, 4]
    assert [after(0.1) for _ in range(4)] == [2, 1, 1, 1]


def test_seeds(model: Any, prompts: list[list[int]]) -> None:
    first = tokens(model, prompts, seed=1, **WARM)
    assert tokens(model, prompts, seed=1, **WARM) == first
    assert tokens(model, prompts, seed=2, **WARM) != first


def test_nothing_compiles_twice(model: Any, prompts: list[list[int]]) -> None:
    """Other numbers, other prompts of the same bucket: the same programs."""
    generate(model.runtime, prompts, Sampling(**WARM))
    compiled, seconds = model.runtime.compiled, model.runtime.compile_s
    other = Sampling(temperature=0.3, top_p=0.5, top_k=40, min_p=0.01, seed=9, max_tokens=7)
    longer = [p + p[:1] for p in prompts]
    _, timings = generate(model.runtime, longer, other)
    assert model.runtime.compiled == compiled
    assert (model.runtime.compile_s, timings.compile) == (seconds, 0)
    assert (timings.prompt_tokens, timings.new_tokens) == (sum(map(len, longer)), 21)
    assert timings.prefill > 0
    assert timings.decode > 0


@pytest.mark.usefixtures("quick")
def test_long_prompts_come_in_turns(model: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts longer than the largest bucket give what they give in one piece."""
    long = [(prompts[2] * 6)[:45], prompts[0], (prompts[2] * 9)[:70]]
    whole = tokens(model, long, seed=4, **WARM)
    monkeypatch.setattr(sizes, "BUCKETS", (4, 16))
    before = len(model.runtime.compiled)
    assert tokens(model, long, seed=4, **WARM) == whole
    assert len(model.runtime.compiled) > before


def test_text_is_streamed_as_it_comes(model: Any, prompts: list[list[int]]) -> None:
    pieces: list[list[str]] = [[], [], []]
    done, _ = generate(
        model.runtime, prompts, Sampling(**WARM), tokenizer=model.tokenizer,
        on_text=lambda row, text: pieces[row].append(text),
    )  # fmt: skip
    for row, c in enumerate(done):
        assert c.finish == "length"
        assert "".join(pieces[row]) == c.text == model.tokenizer.decode(c.tokens)
        assert len(pieces[row]) > 4


def test_stop_strings(model: Any, prompts: list[list[int]]) -> None:
    [whole], _ = generate(model.runtime, prompts[:1], Sampling(**WARM), tokenizer=model.tokenizer)
    first = model.tokenizer.decode(whole.tokens[:5])
    stop = whole.text[len(first) - 2 : len(first) + 2]  # begins in one token and ends in another
    pieces: list[str] = []
    [c], _ = generate(
        model.runtime, prompts[:1], Sampling(**WARM, stop=("never to be seen", stop)),
        tokenizer=model.tokenizer, on_text=lambda row, text: pieces.append(text),
    )  # fmt: skip
    assert c.finish == "stop"
    assert "".join(pieces) == c.text == whole.text[: whole.text.index(stop)]
    assert c.tokens == whole.tokens[: len(c.tokens)]
    assert len(c.tokens) < 12


def test_end_tokens(model: Any, prompts: list[list[int]]) -> None:
    """One row ends, the others go on as they would have."""
    whole, _ = generate(model.runtime, prompts, Sampling(**WARM), tokenizer=model.tokenizer)
    rest = {t for c in whole[1:] for t in c.tokens}
    end = next(t for t in whole[0].tokens[2:] if t not in rest)
    done, _ = generate(model.runtime, prompts, Sampling(**WARM), ends={end}, tokenizer=model.tokenizer)
    n = whole[0].tokens.index(end) + 1
    assert (done[0].finish, done[0].tokens) == ("end", whole[0].tokens[:n])
    assert done[0].text == model.tokenizer.decode(whole[0].tokens[: n - 1])
    assert done[1:] == whole[1:]


def test_what_makes_no_sense(model: Any) -> None:
    vocab = model.runtime.vocab
    for prompts, options, message in (
        ([], {}, "no prompt"),
        ([[1], []], {}, "prompt 1 is empty"),
        ([[1, vocab]], {}, f"prompt 0 has token {vocab}; the vocabulary is 0 to {vocab - 1}"),
        ([[1, -1]], {}, "prompt 0 has token -1"),
        ([[1]], {"stop": ("x",)}, "stop strings need a tokenizer"),
    ):
        with pytest.raises(ConfigError, match=message):
            generate(model.runtime, prompts, Sampling(**options))


def test_tokens_past_the_positions_that_the_model_knows(
    model: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = max(map(len, prompts))
    said: list[str] = []
    with text_stream.to(said.append):
        for room in (longest + 8, longest + 5):
            monkeypatch.setitem(model.runtime.config, "max_position_embeddings", room)
            model.generate(prompts, max_tokens=8)
    assert said == [f"\nthe last 3 tokens are past the {longest + 5} positions that the model knows, by config.json\n"]
    monkeypatch.setitem(model.runtime.config, "max_position_embeddings", longest - 1)
    with pytest.raises(ConfigError, match=f"prompt: {longest} tokens, .* the model knows {longest - 1} positions"):
        model.generate(prompts, max_tokens=8)


def test_draws_follow_the_probabilities() -> None:
    """Frequencies of 8000 draws within five standard deviations."""
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.08, 0.02], np.float32))
    draws, s = 8000, Sampling(temperature=0.5, top_k=4)
    keys = jax.random.split(jax.random.key(0), draws)
    rows = jnp.broadcast_to(logits, (draws, 5))
    seen = jnp.zeros((draws, 0), bool)
    found = np.bincount(samplers.choose(rows, seen, keys, samplers.numbers(s), s.kind), minlength=5) / draws
    p = np.array([0.5, 0.25, 0.15, 0.08, 0]) ** 2  # temperature 0.5 squares
    p /= p.sum()
    assert (np.abs(found - p) <= 5 * np.sqrt(p * (1 - p) / draws)).all()


@pytest.mark.usefixtures("quick")
def test_seen_tokens_are_penalized_as_they_come(model: Any, prompts: list[list[int]]) -> None:
    """Greedy under a huge penalty repeats nothing, of the prompt either, until there is nothing else."""
    [done] = tokens(model, prompts[:1], repetition_penalty=1e6, max_tokens=40)
    assert len(set(done)) == 40
    assert not set(done) & set(prompts[0])
    [plain] = tokens(model, prompts[:1], **{**WARM, "max_tokens": 40})
    assert len(set(plain)) < 40

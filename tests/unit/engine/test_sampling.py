"""Filters over a few candidates keep what filters over the whole sorted vocabulary keep."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.errors import ConfigError, StageError
from plugins.engine import sampling as samplers
from plugins.engine.generate import _push, _Row
from plugins.engine.options import Sampling

VOCAB, ROWS = 3000, 6
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 1.0, "top_k": 256},
    {"temperature": 1.0, "top_k": 257},
    {"temperature": 1.0, "top_k": 5000},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 1.0, "top_p": 0.999},
    {"temperature": 1.0, "min_p": 0.01},
    {"temperature": 0.9, "top_k": 700, "top_p": 0.9, "min_p": 0.001},
]


def logits(spread: float) -> Any:
    return (np.random.default_rng(0).standard_normal((ROWS, VOCAB)) * spread).astype(np.float32)


def in_order(x: Any, s: Sampling) -> Any:
    """Logits, -inf where a filter drops the token, by sorting all of a row in float64."""
    found = np.full(x.shape, -np.inf, np.float32)
    for row, out in zip(x.astype(np.float64), found, strict=True):
        order = np.argsort(-row, kind="stable")
        order = order[: s.top_k] if s.top_k else order
        p = np.exp(row[order] - row[order[0]])
        p /= p.sum()
        kept = (np.cumsum(p) - p < s.top_p) | (s.top_p >= 1)
        kept &= p >= s.min_p * p[0]
        out[order[kept]] = row[order[kept]]
    return found


@pytest.mark.parametrize("spread", [0.3, 4.0])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.brief(each=("options",))
def test_draws_are_those_over_the_sorted_vocabulary(options: dict[str, Any], spread: float) -> None:
    """A flat distribution needs more candidates than the first few, a steep one does not."""
    s, seen = Sampling(**options), jnp.zeros((ROWS, 0), bool)
    x = logits(spread)
    keys = jax.random.split(jax.random.key(7), ROWS)
    scaled = in_order(np.asarray(jnp.asarray(x) / jnp.float32(s.temperature)), s)
    want = jax.vmap(jax.random.categorical)(keys, jnp.asarray(scaled))
    found = jax.jit(lambda x, n: samplers.choose(x, seen, keys, n, s.kind))(x, samplers.numbers(s))
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize(
    ("options", "enough"),
    [({"top_k": 256}, True), ({"top_k": 257}, False), ({"top_p": 0.5}, False), ({"top_p": 0.01}, True)],
    ids=str,
)
def test_few_candidates_are_enough_only_when_no_other_may_be_kept(options: dict[str, Any], enough: bool) -> None:
    s = Sampling(temperature=1.0, **options)
    ranked, tokens, done = samplers.keep_likely(jnp.asarray(logits(0.3)), 256, samplers.numbers(s))
    assert (ranked.shape, tokens.shape) == ((ROWS, 256), (ROWS, 256))
    assert done.tolist() == [enough] * ROWS


@pytest.mark.parametrize(("top_k", "alike", "kept"), [(2, 5, 6), (40, 300, 301), (301, 300, 301)])
def test_tokens_as_likely_as_the_last_of_the_k_stay(top_k: int, alike: int, kept: int) -> None:
    """However many candidates that takes: a token more may be one of them."""
    x = np.zeros((1, VOCAB), np.float32)
    x[0, 5], x[0, 100 : 100 + alike] = 3.0, 2.0
    given = samplers.numbers(Sampling(temperature=1.0, top_k=top_k))
    ranked, _, enough = samplers.keep_likely(jnp.asarray(x), VOCAB, given)
    assert int((ranked > -jnp.inf).sum()) == kept
    assert enough.all()
    assert bool(samplers.keep_likely(jnp.asarray(x), 256, given)[2][0]) is (kept <= 256)


@pytest.mark.parametrize(
    "options", [{"top_k": 300, "top_p": 0.1}, {"top_k": 300, "min_p": 0.5}, {"top_p": 0.1}], ids=str
)
def test_what_few_candidates_keep_is_what_all_would(options: dict[str, Any]) -> None:
    """Where they say that they are enough; shares are of the top k, which they may not all have."""
    given = samplers.numbers(Sampling(temperature=1.0, **options))
    x = jnp.asarray(logits(2.0))
    all_ranked, all_tokens, _ = samplers.keep_likely(x, VOCAB, given)
    few, tokens, enough = samplers.keep_likely(x, 256, given)
    assert enough.tolist() == [options != {"top_k": 300, "top_p": 0.1}] * ROWS
    for row in np.flatnonzero(enough):
        kept = np.isfinite(few[row])
        np.testing.assert_array_equal(tokens[row][kept], all_tokens[row][np.isfinite(all_ranked[row])])


def test_a_vocabulary_is_sorted_only_where_thousands_may_be_kept() -> None:
    """What the programs of a step hold: XLA's own top-k on CPUs, and one sort, in the branch for all candidates."""
    s = Sampling(temperature=1.0, top_k=40)
    keys = jax.random.split(jax.random.key(0), 1)
    call = jax.jit(lambda x, n: samplers.choose(x, jnp.zeros((1, 0), bool), keys, n, s.kind))
    text = call.lower(jnp.zeros((1, 50000)), samplers.numbers(s)).compile().as_text()
    before, entry = text.split("ENTRY")
    assert (before.count(" sort("), entry.count(" sort(")) == (1, 0)
    assert 'custom_call_target="TopK"' in entry


def test_of_equal_logits_the_first_is_likeliest() -> None:
    x = jnp.asarray([[0.0, 2.0, 1.0, 2.0], [-1.0, -1.0, -2.0, -1.0]])
    assert samplers.likeliest(x).tolist() == jnp.argmax(x, axis=-1).tolist() == [1, 0]


def test_logits_that_are_no_numbers_still_give_a_token() -> None:
    x = jnp.asarray([[jnp.nan] * 3, [-jnp.inf] * 3])
    assert samplers.likeliest(x).tolist() == [0, 0]


def test_the_likeliest_is_so_whatever_the_signs() -> None:
    x = jnp.asarray(np.random.default_rng(5).standard_normal((40, 70)) - np.linspace(-3, 3, 40)[:, None], jnp.float32)
    assert samplers.likeliest(x).tolist() == jnp.argmax(x, axis=-1).tolist()
    assert samplers.likeliest(-jnp.abs(x)).tolist() == jnp.argmin(jnp.abs(x), axis=-1).tolist()


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 3}])
@pytest.mark.parametrize("nan", [np.nan, -np.nan])
def test_what_is_nan_is_no_token(options: dict[str, Any], nan: float) -> None:
    s = Sampling(**options)
    x = logits(1.0)
    x[1] = nan
    keys = jax.vmap(jax.random.key)(jnp.arange(ROWS))
    found = np.asarray(samplers.choose(jnp.asarray(x), None, keys, samplers.numbers(s), s.kind))
    assert (found == samplers.NOTHING).tolist() == [row == 1 for row in range(ROWS)]


def test_what_is_colder_than_float32_is_refused() -> None:
    assert not Sampling(temperature=1e-30).greedy
    with pytest.raises(ConfigError, match=r"temperature=1e-31: 0 \(greedy\), or 1e-30 or more, is allowed"):
        Sampling(temperature=1e-31)


def test_a_text_does_not_go_on_where_there_is_no_token() -> None:
    rows, said = [_Row(None, Sampling(), ()) for _ in range(2)], list[Any]()
    _push(rows, np.array([3, 4]), lambda *text: said.append(text))
    with pytest.raises(StageError, match="prompt 1: the model gives NaN for the next token, after 1 that it gave"):
        _push(rows, np.array([5, samplers.NOTHING]), lambda *text: said.append(text))
    rows[1].interrupt()
    _push(rows, np.array([6, samplers.NOTHING]), lambda *text: said.append(text))  # nobody looks at it any more
    assert rows[0].tokens == [3, 5, 6]

"""attention: blocks, rings, memory and mutants; values on named cases are the contract's."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.ops import Kernel
from pipeline.testing.model_op import agree
from plugins.kernels.attention import xla
from plugins.kernels.attention.cases import cases
from plugins.kernels.attention.reference import attention as reference
from plugins.kernels.cases import normal

BATCH, QUERIES, HEADS, KEY_HEADS, D, DV = 2, 23, 6, 3, 8, 5


def prompt() -> tuple[Any, ...]:
    """A causal prompt, the second of two padded on the left."""
    rng = np.random.default_rng(0)
    q, k, v = (normal(rng, BATCH, QUERIES, *s) for s in ((HEADS, D), (KEY_HEADS, D), (KEY_HEADS, DV)))
    at = np.stack([np.arange(QUERIES), np.maximum(np.arange(QUERIES) - 4, -1)]).astype(np.int32)
    return q, k, v, at, at


@pytest.mark.parametrize("options", [{}, {"window": 6}, {"softcap": 1.0}], ids=str)
@pytest.mark.parametrize("block", [1, 4, 22, 23])
@pytest.mark.brief
@pytest.mark.usefixtures("quick")
def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch, block: int, options: dict[str, Any]) -> None:
    monkeypatch.setattr(xla, "QUERIES", block)
    sinks = normal(np.random.default_rng(1), HEADS)
    found = jax.jit(lambda *a: xla.attention(*a, scale=0.3, sinks=sinks, **options))(*prompt())
    agree(reference(*prompt(), scale=0.3, sinks=sinks, **options), found)


def test_the_order_of_slots_does_not_matter() -> None:
    """As in a ring buffer that has gone round."""
    q, k, v, at, slot = prompt()
    turn = [*range(9, QUERIES), *range(9)]
    call = jax.jit(partial(Kernel("attention", ("xla",)), scale=0.3, window=6))
    np.testing.assert_allclose(
        call(q, k, v, at, slot), call(q, k[:, turn], v[:, turn], at, slot[:, turn]), rtol=1e-5, atol=1e-6
    )


def test_padding_is_finite() -> None:
    assert np.isfinite(np.asarray(Kernel("attention", ("xla",))(*prompt(), scale=0.3))).all()


def test_logits_of_a_long_prompt_never_exist_together() -> None:
    """8,192 × 8,192 logits of 64 heads are 17 GB; a block of them has 64 MiB, and there are a few such blocks."""

    def of(*shape: int, dtype: Any = jnp.bfloat16) -> Any:
        return jax.ShapeDtypeStruct((1, 8192, *shape), dtype)

    call = jax.jit(partial(Kernel("attention", ("xla",)), scale=0.125, window=None))
    at = of(dtype=jnp.int32)
    sizes = call.lower(of(64, 64), of(8, 64), of(8, 64), at, at).compile().memory_analysis()
    assert sizes.temp_size_in_bytes < 640 << 20


def _window_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    real = xla.mask
    monkeypatch.setattr(xla, "mask", lambda q, k, w, c: real(q, k, None if w is None else w + 1, c))


def _no_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    real = xla._of_queries
    monkeypatch.setattr(xla, "_of_queries", lambda sinks, seen: real(sinks, seen) - jnp.inf)


def _empty_slots_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = xla.mask
    monkeypatch.setattr(xla, "mask", lambda q, k, w, c: real(q, abs(k), w, c))


def _heads_read_the_wrong_key_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """h % K for h // (H / K)."""
    real = xla.attention

    def wrong(q: Any, k: Any, v: Any, *rest: Any, **options: Any) -> Any:
        turn = [h % k.shape[2] * (q.shape[2] // k.shape[2]) + h // k.shape[2] for h in range(q.shape[2])]
        back = np.argsort(turn)
        sinks = options.pop("sinks", None)
        return real(q[:, :, back], k, v, *rest, sinks=None if sinks is None else sinks[back], **options)[:, :, turn]

    monkeypatch.setattr(xla, "attention", wrong)


@pytest.mark.parametrize(
    ("mutate", "name"),
    [
        (_window_off_by_one, "window"),
        (_window_off_by_one, "window of one"),
        (_no_sinks, "sinks"),
        (_empty_slots_seen, "causal"),
        (_heads_read_the_wrong_key_head, "causal"),
    ],
)
def test_mutants_are_seen(monkeypatch: pytest.MonkeyPatch, mutate: Any, name: str) -> None:
    case = next(c for c in cases() if c.name == name)
    expected = reference(*case.args, **case.options)
    static = {k: v for k, v in case.options.items() if k != "sinks"}
    call = partial(lambda *a, **o: xla.attention(*a, **o), sinks=case.options.get("sinks"), **static)
    agree(expected, call(*map(jnp.asarray, case.args)))
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        agree(expected, call(*map(jnp.asarray, case.args)))

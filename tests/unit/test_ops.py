"""Backends: one runs or raises, a list is tried in order, and nothing about that is forgotten."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import pytest

from pipeline import meter
from pipeline.digest import described, identity
from pipeline.errors import StageError, Unsupported
from pipeline.ops import Kernel, Op
from plugins.models.qwen.family import Qwen
from tests.cases import model_runs


def odd(x: int) -> int:
    if x % 2 == 0:
        raise Unsupported("even numbers")
    return x


def small(x: int) -> int:
    if x > 100:
        raise Unsupported(f"{x} is too large")  # a reason that is another one every time
    return x


def anything(x: int) -> int:
    return x


@dataclass(frozen=True)
class Number(Kernel):
    op: ClassVar[Op] = Op("number", {n.__name__: f"{__name__}:{n.__name__}" for n in (odd, small)}
                          | {"reference": f"{__name__}:anything"})  # fmt: skip
    backends: tuple[str, ...] = ("odd", "small", "reference")


def test_what_declined_is_counted_beside_what_ran() -> None:
    with meter.metered() as measured:
        assert [Number()(x) for x in (1, 2, 4, 102)] == [1, 2, 4, 102]
    record = measured.record()
    assert record["backends"] == [["number", "odd"], ["number", "reference"], ["number", "small"]]
    assert record["declined"] == [
        ["number", "odd", "even numbers", "reference", 1],
        ["number", "odd", "even numbers", "small", 2],
        ["number", "small", "102 is too large", "reference", 1],
    ]


def test_reasons_that_differ_every_time_stay_few() -> None:
    with meter.metered() as measured:
        for x in range(101, 1101):
            Number(("small", "reference"))(x)
    declined = measured.record()["declined"]
    assert len(declined) == meter.MOST_REASONS + 1
    assert sum(d[-1] for d in declined) == 1000
    assert ["number", "small", meter.OTHER_REASONS, "reference", 1000 - meter.MOST_REASONS] in declined


def test_when_all_decline_every_reason_is_said() -> None:
    with pytest.raises(StageError, match=r"no chosen backend of number can do this \(odd: even numbers; small: 102 is"):
        Number(("odd", "small"))(102)


# What an engine's results depend on


def test_an_engine_is_what_runs_and_not_how_it_was_asked_for() -> None:
    """With its options as they come out here in place of what was asked for, as in a key."""
    engine = model_runs.engine()

    def key(**options: Any) -> str:
        asked = replace(engine, **options)
        return identity(described(replace(asked, **asked.identity())))

    assert jax.default_backend() == "cpu"
    assert key(device="auto") == key(device="cpu") == key(device="cpu:1")
    assert key(dtype="auto") == key(dtype="f32") != key(dtype="bf16")
    assert key(cache="auto") == key(cache="f32") != key(cache="bf16")
    assert len({key(), key(weights_dtype="bf16"), key(families=(Qwen(),)), key(cast=Number())}) == 4


def test_namesakes_are_told_apart() -> None:
    @dataclass(frozen=True)
    class Qwen:  # another one
        pass

    from plugins.models.qwen import family

    assert repr(Qwen()).rpartition(".")[2] == repr(family.Qwen()).rpartition(".")[2]
    assert described(Qwen()) != described(family.Qwen())

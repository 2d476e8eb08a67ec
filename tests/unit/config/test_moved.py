"""What was called otherwise once: under its old name there is an error with the new one, which is there."""

import re
from importlib import import_module
from typing import Any

import pytest

from pipeline.api import compose_run
from pipeline.backends import backends_of
from pipeline.config import moved
from pipeline.config.explain import explain
from pipeline.config.resolve import Resolver


@pytest.mark.parametrize(("old", "new"), moved.TARGETS.items())
def test_a_class_that_moved_is_named(old: str, new: str) -> None:
    if kernel := re.fullmatch(r"\$\{kernels\.(\w+)\}", new):
        assert "reference" in backends_of(kernel[1])
    else:
        module, _, name = new.rpartition(".")
        assert isinstance(getattr(import_module(module), name), type)
    resolver = Resolver()
    assert resolver.build({"_target_": old}, "stages.x") is None
    assert [str(p) for p in resolver.problems] == [f"stages.x._target_: {old!r} is now {new!r}"]


@pytest.mark.parametrize(("place", "new"), moved.FIELDS.items())
def test_a_field_that_was_renamed_is_named(place: tuple[str, str], new: str) -> None:
    target, old = place
    resolver = Resolver()
    resolver.build({"_target_": target, old: 1}, "stages.x")
    assert any(str(p).endswith(f"has no field {old!r}; it is now {new!r}") for p in resolver.problems)


@pytest.mark.parametrize(("place", "why"), moved.GONE.items())
def test_a_field_that_went_is_explained(place: tuple[str, str], why: str) -> None:
    target, old = place
    resolver = Resolver()
    resolver.build({"_target_": target, old: 1}, "stages.x")
    assert any(str(p).endswith(f"has no field {old!r}; it is gone: {why}") for p in resolver.problems)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("engine.hold=bf16", "'hold' in engine is now 'weights_dtype'"),
        (
            "quant.scale_rule=even",
            "'scale_rule' in quant is gone: it had no effect; quant=none is a job of its own",
        ),
    ],
)
def test_the_command_line_says_so_too(override: str, said: str) -> None:
    given = ["+model=gpt_oss", "flow=generate", "quant=none", override]
    with pytest.raises(Exception) as caught:  # noqa: PT011  Hydra's, of a class that it does not promise
        compose_run(given)
    explained: Any = explain(caught.value, given)
    assert str(explained) == f"{override}: {said}"

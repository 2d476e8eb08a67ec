"""What the makers of a model ask for, said as what to write."""

import shlex
from typing import Any

import pytest

from pipeline import suggested
from pipeline.config.overrides import parsed_override
from plugins.engine.options import Sampling


@pytest.mark.parametrize(
    ("generation", "options"),
    [
        ({"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05},
         {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05}),
        ({"do_sample": True, "cache_implementation": "hybrid", "min_p": None}, {"temperature": 1.0}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
        ({"temperature": 0.6, "repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),  # greedy
        ({"stop_strings": "User:"}, {"stop": ("User:",)}),
        ({"stop_strings": ["a", "b"], "eos_token_id": [1, 2], "max_length": 4096}, {"stop": ("a", "b")}),
        ({"do_sample": True, "temperature": "warm"}, {"temperature": 1.0}),
        ({}, {}),
    ],
)  # fmt: skip
def test_options(generation: dict[str, Any], options: dict[str, Any]) -> None:
    assert suggested.options(generation) == options
    assert not suggested.said(generation, Sampling(**options))


def test_what_is_said() -> None:
    """What differs alone; and in any case what nothing here does."""
    generation = {"do_sample": True, "temperature": 0.6, "top_k": 20, "no_repeat_ngram_size": 0, "bad_words_ids": []}
    asks = "generation_config.json asks for"
    assert suggested.said(generation, Sampling()) == f"{asks} sampling.temperature=0.6 sampling.top_k=20"
    assert suggested.said(generation, Sampling(temperature=0.6)) == f"{asks} sampling.top_k=20"
    generation |= {"suppress_tokens": [3], "num_beams": 4}
    nothing = "suppress_tokens, num_beams, which nothing here does"
    assert suggested.said(generation, Sampling(temperature=0.6)) == f"{asks} sampling.top_k=20; and for {nothing}"
    assert suggested.said(generation, Sampling(temperature=0.6, top_k=20)) == f"{asks} {nothing}"


def test_it_is_what_can_be_typed() -> None:
    """In a shell: values in full, and texts with whatever is in them."""
    wanted = {"temperature": 0.123456789, "top_k": 1234567, "stop": ["a b", "it's", "n, $m"]}
    given = {"do_sample": True, "stop_strings": wanted["stop"], **wanted}
    words = shlex.split(suggested.said(given, Sampling(temperature=1.0)).removeprefix(f"{suggested.FILE} asks for "))
    found = [override for word in words if (override := parsed_override(word)) is not None]
    assert {override.key_or_group.removeprefix("sampling."): override.value() for override in found} == wanted

"""Published models write on several devices what they write on one.

Needs the files (`make models`) in the folder that WEIGHTMILL_MODELS names; nothing is downloaded here.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

import pipeline
from plugins.engine.generate import generate
from plugins.engine.options import Sampling
from plugins.engine.start import start
from plugins.mesh.library import preset
from tests.cases import model_runs

FOLDER = Path(os.environ.get("WEIGHTMILL_MODELS", ".models")).absolute()
GREEDY = Sampling(max_tokens=12)
PROMPTS: dict[str, list[list[int]]] = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": [[504, 3575, 282, 4649, 314], [504, 260, 338, 216]],
    "gemma-3-270m-q4_k_m.gguf": [[2, 818, 5279, 529, 7001, 563], [2, 818, 818]],  # of one key and value head
}
MESHES = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": (preset("tensor", tensor=3), preset("fsdp"), preset("data")),
    "gemma-3-270m-q4_k_m.gguf": (preset("fsdp"), preset("data")),
}
pytestmark = pytest.mark.download


def written(model: Any, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    return [one.tokens for one in generate(model.runtime, prompts, GREEDY)[0]]


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.brief(1)  # toys of Gemma's are spread in tests/sharding
def test_greedy_tokens_are_those_of_one_device(name: str) -> None:
    if not (FOLDER / name).is_file():
        pytest.skip(f"{name} is not in WEIGHTMILL_MODELS")
    alone = pipeline.load_model(FOLDER / name)
    with model_runs.quick_compilation():
        expected = written(alone, PROMPTS[name])
        assert len({*expected}) == len(expected)
        for mesh in MESHES[name]:
            model = start(replace(alone._engine, mesh=mesh), alone._checkpoint, jax.devices()[: mesh.size])
            assert model.facts["device_nbytes"] == model.facts["planned_nbytes"]
            assert written(model, PROMPTS[name]) == expected, mesh.axes

"""How many tokens are scored where nobody says: fewer of larger models, the same everywhere."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.api import compose_run
from pipeline.engine import Windows, scoring
from pipeline.errors import PlanError
from pipeline.planning.memory import plan_run
from pipeline.reporting.console import plan_tables
from pipeline.scored import operations, settled
from pipeline.stage import Checkpoint
from pipeline.tensors.spec import TensorSpec
from tests.cases.memory_store import MemoryStore

AUTO = Windows(tokens="auto")


class Outline(MemoryStore):
    """Shapes only."""

    def __init__(self, **shapes: tuple[int, ...]):
        self._shapes = shapes

    @property
    def specs(self) -> dict[str, TensorSpec]:  # type: ignore[override]
        return {n: TensorSpec(s, "BF16") for n, s in self._shapes.items()}


def model(billions: float, **config: Any) -> Checkpoint:
    return Checkpoint(Outline(w=(int(billions * 1e6), 1000), norm=(4096,)), config)


@pytest.mark.parametrize(("billions", "tokens"), [(0.135, 8192), (1.2, 4096), (3, 1024), (8, 512), (70, 256)])
def test_larger_models_score_fewer_tokens(billions: float, tokens: int) -> None:
    """Two texts, before and after quantization."""
    assert settled(AUTO, model(billions), 4, "w").tokens == tokens


def test_experts_count_as_far_as_they_are_chosen() -> None:
    shapes = {"layers.0.mlp.experts.up": (32, 100, 100), "layers.0.q": (100, 100)}
    config = {"num_local_experts": 32, "num_experts_per_tok": 4}
    assert operations(Checkpoint(Outline(**shapes), config)) == 2 * (4 + 1) * 10_000
    assert operations(Checkpoint(Outline(**shapes), {})) == 2 * (32 + 1) * 10_000


def test_overlap_is_scored_again() -> None:
    assert settled(Windows(tokens="auto", stride=64), model(0.5), 4, "w").tokens == 2048
    assert settled(AUTO, model(0.5), 4, "w").tokens == 8192


def test_what_was_said_holds_and_what_was_not_is_an_error_below() -> None:
    given = Windows(tokens=99)
    assert settled(given, model(70), 4, "w") is given
    assert settled(Windows(tokens=None), model(70), 4, "w").tokens is None
    with pytest.raises(ValueError, match="auto"):
        scoring([100], AUTO)


def test_windows_fit_the_positions_that_the_model_knows() -> None:
    with pytest.raises(PlanError, match=r"w\.window: 512 tokens.*knows 256 positions; at most w\.window=256"):
        settled(Windows(tokens="auto", window=512), model(1, max_position_embeddings=256), 4, "w")
    with pytest.raises(PlanError, match=r"config\.json max_position_embeddings: -3 must be positive"):
        settled(AUTO, model(1, max_position_embeddings=-3), 4, "w")


def test_a_window_past_the_models_positions_is_an_error() -> None:
    for name in ("evaluate", "sensitivity"):
        run = compose_run(["+model=gpt_oss", "quant=mxfp4", f"flow={name}", "evaluate.windows.window=4096"])
        [problem] = plan_run(run, Path("here")).problems
        assert str(problem) == (
            f"{name}.windows.window: 4096 tokens, and config.json says that the model knows 2,048 positions; at most "
            f"{name}.windows.window=2048"
        )
    with pytest.raises(PlanError):
        settled(Windows(window=513), model(1, max_position_embeddings=512), 1, "w")
    settled(Windows(window=512), model(1, max_position_embeddings=512), 1, "w")


def test_the_plan_says_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    from pipeline.reporting import console

    run = compose_run(["+model=gpt_oss", "quant=mxfp4", "flow=evaluate"])
    console.out(*plan_tables(plan_run(run, Path("here"))))
    assert "8,192 tokens of a text" in " ".join(capsys.readouterr().out.replace("│", " ").split())

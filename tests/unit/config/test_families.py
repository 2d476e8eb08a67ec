"""Which model options are families."""

from pathlib import Path

import pytest

from pipeline.config.families import checkpoints, named_like
from pipeline.config.options import CONF


def test_families_have_no_source_and_checkpoints_have(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("defaults: [smollm2, _self_]\nsource: a/b\n")
    found = checkpoints([CONF, tmp_path])
    assert found["smollm2"] == ["mine", "smollm2_135m", "smollm2_1_7b", "smollm2_360m"]
    assert found["llama"] == ["llama3_1_8b", "llama3_2_1b", "llama3_2_3b", "mistral_7b"], "and not those of other names"
    assert "gpt_oss" not in found, "which comes with one"


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("SmolLM2", "smollm2_135m"), ("SmolLM2-135M", "smollm2_135m"), ("Llama3.2-1B", "llama3_2_1b"),
        ("./llama", None), ("~/llama", None), ("lama.gguf", None), ("a/llama", None), ("xyzzyx", None),
    ],
)  # fmt: skip
def test_names_of_models_are_found_however_they_are_written(typed: str, first: str | None) -> None:
    assert next(iter(named_like(typed, [CONF])), None) == first

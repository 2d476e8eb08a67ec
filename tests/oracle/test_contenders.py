"""A contender whose reader does not find all weights: the cell fails, and made-up weights are not measured."""

from importlib.util import find_spec
from pathlib import Path

import pytest

import pipeline
from pipeline.errors import StageError
from plugins.contenders.transformers import Transformers

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("compressed_tensors") is None, reason="compressed-tensors is not installed"),
]
pytest.importorskip("torch")


def test_transformers_does_not_find_packed_experts(tmp_path: Path) -> None:
    """Why its `form` refuses them: when this fails, it has learned to read them."""
    given = ["+model=gpt_oss", "flow=convert", "quant=int8", "export=compressed_tensors", "progress=false"]
    pipeline.run([*given, f"paths.run={tmp_path / 'run'}", f"export.path={tmp_path / 'packed'}"], progress=False)
    with pytest.raises(StageError, match=r"did not find 16 weights of the model in packed: .*experts\.down_proj"):
        Transformers().load(tmp_path / "packed", 1)

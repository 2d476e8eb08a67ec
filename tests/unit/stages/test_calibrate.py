"""What calibrating reads of a text, and what its plan counts."""

import pickle
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.engine import Windows
from pipeline.hooks import optional
from pipeline.mesh import Mesh
from pipeline.stage import StageHooks
from plugins.quant.gptq import Gptq
from stages.calibrate import CHARS, MARGIN, Calibrate, _matrix, beginning
from stages.quantize import Quantize
from stages.successive import Successive
from tests.cases.quantized import quant_method
from tests.sharding import models


@dataclass
class Words:
    """A tokenizer whose tokens are words; `wide` letters each."""

    asked: list[int] = field(default_factory=list)

    def encode(self, text: str) -> list[str]:
        self.asked.append(len(text))
        return text.split()


@pytest.mark.parametrize("letters", [3, 40])
def test_no_more_of_a_text_is_encoded_than_is_needed(letters: int) -> None:
    text = " ".join(f"{i:0{letters}}" for i in range(20_000))
    words = Words()
    assert beginning(words, text, 500) == text.split()[:500]
    assert max(words.asked) <= 2 * max(CHARS * 500, (500 + MARGIN + 1) * (letters + 1))
    assert beginning(words, text, None) == text.split()
    assert beginning(words, "a b", 500) == ["a", "b"]


def test_one_block_is_planned_and_not_all(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a text " * 100)
    stage = Calibrate(replace(models.engine(), tokenizer=_Any()), (str(text),), Windows(8, None, 64, 2), hessian=True)
    two, eight = (stage.plan(models.checkpoint("llama", layers=n)).takes for n in (2, 8))
    assert eight.device_nbytes == pytest.approx(two.device_nbytes, rel=0.02)
    bare = replace(stage, hessian=False).plan(models.checkpoint("llama", layers=2)).takes
    assert two.disk_nbytes - bare.disk_nbytes == 2 * 4 * (5 * 64**2 + 128**2 + 256**2)
    assert two.host_nbytes > bare.host_nbytes


def test_of_several_processes_one_looks(tmp_path: Path) -> None:
    """By itself: it waits for no other, whose devices it does without."""
    (text := tmp_path / "text.txt").write_text("a text " * 100)
    two = replace(models.engine(), tokenizer=_Any(), mesh=Mesh({"data": 4}, {"batch": "data"}, processes=2))
    stage = Calibrate(two, (str(text),), Windows(8, None, 64, 2))
    takes = stage.plan(models.checkpoint("llama")).takes
    assert takes is not None
    assert takes.devices == 2
    for one in (stage, Successive(two, Quantize(quant_method("int4"), (), calibrate=Gptq()), (str(text),), Windows(8))):
        found = optional(one, StageHooks, "gang")
        assert found.processes == 1
        found.join(0, "", alone=True)
        pickle.dumps(found)
        assert replace(one, engine=models.engine()).gang is None


class _Any:
    """A tokenizer of whatever."""

    def exists(self, checkpoint: object) -> bool:
        return True

    def check(self, checkpoint: object) -> None: ...

    def inputs(self, checkpoint: object) -> tuple[()]:
        return ()


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_one_matrix_of_a_file_is_read(lead: tuple[int, ...], tmp_path: Path) -> None:
    array = np.random.default_rng(0).standard_normal((*lead, 5, 5)).astype(np.float32)
    np.save(tmp_path / "h.npy", array)
    for index in np.ndindex(*lead):
        np.testing.assert_array_equal(_matrix(tmp_path / "h.npy", *index), array[index])

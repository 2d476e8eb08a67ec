"""What must be seen at once counts in the plan of every task that sees it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.backends import backends_of
from pipeline.ops import Kernel
from pipeline.rules import Rule
from pipeline.stage import Context
from pipeline.tensors.scheme import Scheme
from pipeline.testing.memory import checkpoint
from plugins.formats.orbax.pytree import Pytree
from plugins.formats.safetensors.container import SafeTensors
from plugins.kernels.quantize.scratch import PLAIN, SEARCHING, scratch_nbytes
from plugins.quant.blockwise import Blockwise
from stages.export import Export
from stages.quantize import Quantize as QuantizeStage

ROW = Scheme("int8", 0, "f32")
SHAPE = (3, 1 << 20)


def test_every_backend_has_a_figure() -> None:
    assert set(PLAIN) == set(SEARCHING) == set(backends_of("quantize"))


@pytest.mark.parametrize("backend", sorted(PLAIN))
def test_a_row_that_must_be_whole_counts_whole(backend: str) -> None:
    options = {"cuts_rows": False, "searches": True}
    assert scratch_nbytes(ROW, SHAPE, [backend], **options) == SEARCHING[backend] << 20
    assert scratch_nbytes(ROW, (3, 1 << 10), [backend], **options) == 0  # a tile is in every task's allowance
    assert scratch_nbytes(ROW, SHAPE, [backend], cuts_rows=True, searches=False) == 0
    assert scratch_nbytes(Scheme("int8", 32, "f32"), SHAPE, [backend], **options) == 0
    assert scratch_nbytes(ROW, (1 << 20,), [backend], **options) == SEARCHING[backend] << 20


def test_the_hungriest_of_a_list_counts() -> None:
    given = scratch_nbytes(ROW, SHAPE, ["numpy", "reference"], cuts_rows=False, searches=False)
    assert given == PLAIN["reference"] << 20


def test_double_quantization_is_cut_by_numpy_only() -> None:
    double = Scheme("nf4", 64, "dynamic8", second="dynamic8")
    assert scratch_nbytes(double, SHAPE, ["numpy"], cuts_rows=False, searches=False) == 0
    assert scratch_nbytes(double, SHAPE, ["xla"], cuts_rows=False, searches=False) == 3 * PLAIN["xla"] << 20


def peak(tmp_path: Path, **options: Any) -> int:
    quantize, dequantize, cast = (Kernel(op, ("numpy",)) for op in ("quantize", "dequantize", "cast"))
    method = Blockwise("int8", 0, "f32", quantize=quantize, dequantize=dequantize, **options)
    given = checkpoint({"w": np.zeros((1, 1 << 20), np.float32)})
    coded = QuantizeStage(method, (Rule(match="*"),)).run(Context(tmp_path), given)
    work = Export(Pytree(), SafeTensors(), dequantize, cast).run(Context(tmp_path), coded)
    return max(chunk.peak_nbytes for chunk in work.chunks)


def test_chunks_of_an_export_count_it(tmp_path: Path) -> None:
    more = peak(tmp_path, search="mse", search_grid=(0.9,)) - peak(tmp_path)
    assert more == SEARCHING["numpy"] << 20

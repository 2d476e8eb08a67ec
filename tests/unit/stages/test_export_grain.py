"""Where an export cuts: a row that does not fit is cut, a transposed one across all rows, a scalar not at all."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.ops import Kernel
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.binding import Binding, Bound, Part
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.steps import Transpose
from pipeline.testing.memory import MemoryStore
from plugins.formats.safetensors.container import SafeTensors
from stages.export import Export


class Turned:
    """Matrices lie transposed."""

    companions = ()

    def encode(self, tensors, config):
        bound = {n: Bound(s, (Part(n, steps=(Transpose(),) if len(s.shape) > 1 else ()),)) for n, s in tensors.items()}
        leaves = {n: TensorSpec(s.shape[::-1], s.dtype) for n, s in tensors.items()}
        return Binding(bound, leaves, config)


TENSORS = {"w": np.arange(3 * 20_000, dtype=np.float32).reshape(3, 20_000), "one": np.float32(7).reshape(())}


@pytest.mark.parametrize("chunk_nbytes", [1 << 14, 1 << 16, 1 << 20])
def test_a_transposed_leaf_is_cut_along_its_own_rows(tmp_path: Path, chunk_nbytes):
    export = Export(Turned(), SafeTensors(), Kernel("dequantize", ("numpy",)), Kernel("cast", ("numpy",)))
    work = export.run(Context(tmp_path, chunk_nbytes=chunk_nbytes), Checkpoint(MemoryStore(TENSORS)))
    pieces = [p for c in work.chunks for p in c.pieces if p.tensor == "w"]
    long = chunk_nbytes // 2 < 20_000
    assert (len(pieces) > 1) == (chunk_nbytes < 1 << 20)
    assert all((p.index[0] == slice(0, 3)) == (long or len(pieces) == 1) for p in pieces)
    work.begin(fresh=True)
    digests = [work.do(chunk) for chunk in work.chunks]
    assert [work.digest(chunk) for chunk in work.chunks] == digests
    work.finish([{"digest": digest} for digest in digests])
    written = SafeTensors().open(tmp_path / "model")
    assert np.array_equal(written.read("w"), TENSORS["w"].T)
    assert written.read("one") == 7

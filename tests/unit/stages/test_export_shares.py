"""An export of what lies in several processes: each writes its part, and what cannot be written apart is refused."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import PlanError
from pipeline.ops import Kernel
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.scheme import MXFP4
from pipeline.tensors.store import Index
from pipeline.testing.memory import MemoryStore, quantized
from plugins.formats.orbax.container import Orbax
from plugins.formats.orbax.pytree import Pytree
from plugins.formats.safetensors.container import SafeTensors
from plugins.formats.safetensors.plain import Plain
from stages.export import Export
from stages.export_work import ExportWork

ROWS = [((slice(0, 40),), 0), ((slice(40, 96),), 1)]
UNPACK, CAST = Kernel("dequantize", ("numpy",)), Kernel("cast", ("numpy",))


@dataclass(frozen=True)
class Shared(MemoryStore):
    """Tensors of which two processes hold parts."""

    held: dict[str, list[tuple[Index, int]]] = field(default_factory=dict)

    def shares(self, name: str) -> Sequence[tuple[Index, int]] | None:
        return self.held.get(name)


def work(store: Any, folder: Path, **options: Any) -> ExportWork:
    dialect, container = (Plain(), SafeTensors()) if options else (Pytree(), Orbax())
    stage = Export(dialect, container, UNPACK, CAST, str(folder / "model"), None, **options)
    found = stage.run(Context(folder, chunk_nbytes=1 << 10), Checkpoint(store))
    assert isinstance(found, ExportWork)
    return found


@pytest.mark.parametrize("options", [{}, {"dtype": "fp32"}], ids=["as it is", "seen through a view"])
def test_each_process_has_chunks_of_its_own(options: dict[str, Any], tmp_path: Path) -> None:
    tensors = {"a": np.arange(96 * 64, dtype=np.float32).reshape(96, 64), "b": np.ones(96, np.float32)}
    chunks = work(Shared(tensors, held={"a": ROWS, "b": ROWS}), tmp_path, **options).chunks
    for process, rows in ((0, range(40)), (1, range(40, 96))):
        mine = [piece for chunk in chunks if chunk.process == process for piece in chunk.pieces]
        for name in tensors:
            boxes = [piece.index[0] for piece in mine if piece.tensor == name]
            assert sorted(i for box in boxes for i in range(box.start, box.stop)) == list(rows)
    assert len(chunks) > 10  # cut further, as a task can hold
    alone = work(MemoryStore(tensors), tmp_path, **options).chunks
    assert {chunk.process for chunk in alone} == {None}


def test_blocks_that_lie_in_two_processes_are_refused(tmp_path: Path) -> None:
    columns = [((slice(0, 4), slice(0, 16)), 0), ((slice(0, 4), slice(16, 64)), 1)]
    tensors = {name: quantized(MXFP4, (4, 64)) for name in ("a", "b")}
    shared = work(Shared(tensors, held={"a": columns, "b": columns}), tmp_path)
    with pytest.raises(PlanError) as raised:
        _ = shared.chunks
    assert [p.where for p in raised.value.problems] == ["a", "b"]
    assert "[0:4, 16:64] of it, and it is written in multiples of [1, 32]" in str(raised.value)

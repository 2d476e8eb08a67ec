"""The error in a report is of what readers decode, whatever a method says of itself."""

import tracemalloc
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pipeline import meter
from pipeline.measured import encoded, lost, measures_truly
from pipeline.ops import Kernel
from pipeline.rules import Rule
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.blocks import part_of
from pipeline.tensors.stats import ErrorStats
from plugins.quant.blockwise import Blockwise
from plugins.quant.structs import Structs
from stages.quantize import Quantize
from stages.transcode import Transcode
from tests.cases.memory_store import MemoryStore

X = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
UNPACK = Kernel("dequantize", ("numpy",))
make = partial(Blockwise, "int4", 32, "f32", scale_rule="amax")


@dataclass(frozen=True)
class Clips(Blockwise):
    """Measures its error from the clipped values."""

    def encode(self, x: Any, **more: Any) -> Any:
        return super().encode(np.clip(x, -1.5, 1.5), **more)


@dataclass(frozen=True)
class Clipping(Clips):
    """And decodes for itself what nobody else would."""

    def decode(self, q: Any, dtype: str = "BF16", *, overflow: str = "error") -> Any:
        return X if q.shape == X.shape else super().decode(q, dtype)


def truth(method: Blockwise) -> float:
    return ErrorStats.between(X, np.asarray(UNPACK(method.encode(X), "F32"))).sqnr_db


def reported(stage: Any, store: Any) -> float:
    found = stage.run(Context(Path()), Checkpoint(store)).store
    with meter.metered() as tally:
        found.read("w")
    [stats] = tally.errors.values()
    return float(stats.sqnr_db)


def test_a_clipping_subclass_cannot_fool_the_report() -> None:
    method = Clipping(**vars_of(make()))
    assert method.encode(X, measure=True)[1].sqnr_db > truth(method) + 4  # what it says of itself
    stage = Quantize(method, (Rule(match="*"),))
    assert reported(stage, MemoryStore({"w": X})) == pytest.approx(truth(method), abs=1e-9)


def test_nor_one_that_quantizes_again() -> None:
    method = Clips(**{**vars_of(make()), "block_elems": 64})
    packed = make().encode(X)
    given = np.asarray(UNPACK(packed, "F32"))
    true = ErrorStats.between(given, np.asarray(UNPACK(method.encode(given), "F32"))).sqnr_db
    stage = Transcode(method, allow_requantize=True)
    assert reported(stage, MemoryStore({"w": packed})) == pytest.approx(true, abs=1e-9)
    assert method.encode(given, measure=True)[1].sqnr_db > true + 3


def test_our_own_measures_in_one_pass_and_says_the_same() -> None:
    ours = make()
    assert measures_truly(ours)
    assert not measures_truly(Clipping(**vars_of(ours)))
    assert not measures_truly(replace(ours, quantize=Kernel("quantize", ("plugins.kernels.quantize.numpy",))))
    assert encoded(ours, X, UNPACK)[1].sqnr_db == pytest.approx(truth(ours), abs=1e-6)


@pytest.mark.parametrize(
    ("method", "shape"),
    [
        (Structs("q4_k"), (3, 700, 512)),
        (Clips("int8", 0, "f32", scale_rule="amax"), (5, 1 << 18)),  # a scale a row
        (Clips("int8", 0, "f32", block_rows=0), (2, 600, 512)),  # and one a matrix
        (Clips("e4m3", 128, "f32", block_rows=128), (700, 1024)),
        (Clips("int4", 32, "f32"), (1 << 20,)),
        # Parts of it have no meaning alone.
        (Clips("nf4", 64, "dynamic8", second="dynamic8", codes_from="unrounded"), (700, 512)),
        (Structs("iq4_nl"), (0, 32)),
    ],
    ids=lambda v: str(getattr(v, "scheme", v)),
)
def test_piece_by_piece_is_the_whole(method: Any, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(ml_dtypes.bfloat16)
    q, stats = encoded(method, x, UNPACK)
    want = ErrorStats.between(x.astype(np.float32), np.asarray(UNPACK(q, "F32")))
    assert (stats.count, stats.max_abs) == (want.count, want.max_abs)
    assert stats.sq_error == pytest.approx(want.sq_error, rel=1e-12)
    assert stats.sq_signal == pytest.approx(want.sq_signal, rel=1e-12)


def test_measuring_takes_no_more_than_a_piece() -> None:
    method, x = Clips("int8", 32, "f32"), np.ones((1024, 8192), ml_dtypes.bfloat16)
    q = method.encode(x)
    lost(x[:1], part_of(q, (slice(0, 1),)), UNPACK)  # what is made once
    tracemalloc.start()
    lost(x, q, UNPACK)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20 < x.nbytes


def vars_of(method: Blockwise) -> dict[str, Any]:
    from dataclasses import fields

    return {f.name: getattr(method, f.name) for f in fields(Blockwise)}

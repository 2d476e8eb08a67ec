"""The error in a report is of what readers decode, whatever a method says of itself."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import meter
from pipeline.measured import encoded, measures_truly
from pipeline.ops import Kernel
from pipeline.rules import Rule
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.stats import ErrorStats
from plugins.quant.blockwise import Blockwise
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


def vars_of(method: Blockwise) -> dict[str, Any]:
    from dataclasses import fields

    return {f.name: getattr(method, f.name) for f in fields(Blockwise)}

"""Pieces smaller than the blocks of the source: under a transform or a method that decodes, every box can be read."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from pipeline.tensors.binding import Bound
from pipeline.tensors.blocks import block_grain, outward
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import Index
from pipeline.tensors.views import MappedStore, grain
from pipeline.testing.memory import MemoryStore
from plugins.formats.compressed_tensors.schemes import parts_of
from tests.cases.quantized import quantized
from tests.oracles.blocks_by_hand import dequantize

TILES = Scheme("e4m3", 32, "f32", block_rows=16)


@dataclass(frozen=True)
class Decoded:
    """The values of quantized tensors, by the oracle."""

    def spec(self, name: str, spec: TensorSpec) -> TensorSpec:
        return replace(spec, dtype="F64", scheme=None)

    def apply(self, name: str, value: Any, index: Index) -> Any:
        return dequantize(value)


@pytest.mark.parametrize("scheme", [TILES, MXFP4, Scheme("int3", 0, "f32"), Scheme("e4m3", 0, "f32", block_rows=0)])
def test_any_box_of_decoded_values(scheme: Scheme) -> None:
    q = quantized(scheme, (3, 40, 64))
    store = MappedStore(MemoryStore({"w": q}), Decoded())
    want = dequantize(q)
    rng = np.random.default_rng(0)
    for _ in range(30):
        ends = [sorted(rng.choice(n + 1, 2, replace=False).tolist()) for n in q.shape]
        box = tuple(slice(*e) for e in ends)
        assert np.array_equal(store.read("w", box), want[box]), box


def test_scales_coded_across_a_tensor_are_read_whole() -> None:
    assert block_grain(Scheme("nf4", 64, "dynamic8", second="dynamic8"), (40, 256)) == (40, 256)


def test_grain_of_a_bound_tensor() -> None:
    spec = TensorSpec((40, 64), "BF16", TILES)
    assert grain(Bound(spec, parts_of("m", spec, "float-quantized"))) == (16, 32)
    spec = TensorSpec((40, 64), "BF16", Scheme("uint4", 32, "bf16", zero="int"))
    assert grain(Bound(spec, parts_of("m", spec, "pack-quantized"))) == (8, 32)
    spec = replace(spec, shape=(42, 64))  # zero points of 42 rows do not fill words: all rows or none
    assert grain(Bound(spec, parts_of("m", spec, "pack-quantized"))) == (42, 32)


def test_outward() -> None:
    assert outward((slice(3, 17), slice(0, 5)), (40, 64), (16, 32)) == (slice(0, 32), slice(0, 32))
    assert outward((slice(33, 40), slice(64, 64)), (40, 64), (16, 32)) == (slice(32, 40), slice(64, 64))

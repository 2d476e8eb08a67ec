"""The dialects of quantization libraries keep the contract that we ship.

bitsandbytes lays rows one after the other and cannot deliver the contract's boxes of columns; it has tests of its own.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from pipeline.formats import Dialect
from pipeline.tensors.scheme import Scheme
from pipeline.testing.dialect import DialectContract
from plugins.formats.modelopt.dialect import NVFP4, ModelOpt
from tests.cases.quantized import quantized
from tests.unit.formats.test_compressed_tensors import CASES, CONFIG, plain


class TestCompressedTensors(DialectContract):
    strict = False
    case = "mxfp4"

    @pytest.fixture(autouse=True, params=CASES)
    def chosen(self, request: pytest.FixtureRequest) -> None:
        self.case = request.param

    def dialect(self) -> Dialect:
        return CASES[self.case][0]

    def scheme(self) -> Scheme:
        return CASES[self.case][1]

    def tensors(self) -> Mapping[str, Any]:
        # Rows and columns fill words of 32 bits, so that boxes may be cut anywhere between blocks.
        gate_up, down = quantized(self.scheme(), (3, 32, 160)), plain(3, 160, 16)
        if self.scheme().block_rows > 1:
            gate_up, down = plain(3, 32, 160), quantized(self.scheme(), (3, 160, 96))
        return {
            "model.embed_tokens.weight": plain(37, 96),
            "model.layers.0.self_attn.q_proj.weight": quantized(self.scheme(), (64, 96)),
            "model.layers.0.self_attn.q_proj.bias": plain(64),
            "model.layers.0.mlp.experts.gate_up_proj": gate_up,
            "model.layers.0.mlp.experts.gate_up_proj_bias": plain(3, 32),
            "model.layers.0.mlp.experts.down_proj": down,
            "model.norm.weight": plain(96),
        }

    def config(self) -> Mapping[str, Any]:
        return CONFIG


class TestModelOpt(TestCompressedTensors):
    @pytest.fixture(autouse=True)
    def chosen(self) -> None: ...

    def dialect(self) -> Dialect:
        return ModelOpt()

    def scheme(self) -> Scheme:
        return NVFP4

    def tensors(self) -> Mapping[str, Any]:
        return {**super().tensors(), "model.layers.0.mlp.experts.down_proj": quantized(NVFP4, (3, 160, 16))}

"""Our own dialects keep the contract that we ship."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.formats import Dialect
from pipeline.tensors.binding import Binding
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4
from pipeline.testing.dialect import DialectContract
from pipeline.testing.memory import example
from plugins.formats.gguf.model import GgufDialect
from plugins.formats.gpt_oss.dialect import GptOss, Original
from plugins.formats.safetensors.plain import Plain
from tests.cases import toy_gpt_oss, toy_llama


class TestHuggingFace(DialectContract):
    experts: toy_gpt_oss.Experts = "bf16"

    def dialect(self) -> Dialect:
        return GptOss()

    def tensors(self) -> Mapping[str, Any]:
        logical = toy_gpt_oss.make("hf", self.experts).logical
        return {n: QTensor(v[0], v[1], MXFP4) if isinstance(v, tuple) else v for n, v in logical.items()}

    def config(self) -> Mapping[str, Any]:
        return toy_gpt_oss.make("hf").config


class TestHuggingFacePacked(TestHuggingFace):
    experts = "mxfp4"


class TestOriginal(TestHuggingFace):
    def dialect(self) -> Dialect:
        return Original()


class TestOriginalPacked(TestOriginal):
    experts = "mxfp4"


class TestPlain(DialectContract):
    strict = False

    def dialect(self) -> Dialect:
        return Plain()

    def tensors(self) -> Mapping[str, Any]:
        return example()

    def config(self) -> Mapping[str, Any]:
        return {"model_type": "any"}


class TestGgufLlama(DialectContract):
    def dialect(self) -> Dialect:
        return GgufDialect()

    def tensors(self) -> Mapping[str, Any]:
        return toy_llama.weights()

    def config(self) -> Mapping[str, Any]:
        return toy_llama.CONFIG

    def seen(self, binding: Binding) -> dict[str, Any]:
        """The container hands over what stands in for config.json."""
        return dict(binding.metadata)


class TestGgufGptOss(TestGgufLlama):
    def tensors(self) -> Mapping[str, Any]:
        """Norms, biases and routers in fp32, as a file has them."""
        given = TestHuggingFacePacked().tensors()
        matrices = ("_proj.weight", "embed_tokens.weight", "lm_head.weight")
        keep = {n for n, v in given.items() if isinstance(v, QTensor) or n.endswith(matrices)}
        return {n: v if n in keep else v.astype(np.float32) for n, v in given.items()}

    def config(self) -> Mapping[str, Any]:
        return toy_gpt_oss.make("hf").config

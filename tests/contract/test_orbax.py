"""The Orbax container and the dialect of pytrees keep the contracts that we ship."""

from collections.abc import Mapping
from typing import Any

from pipeline.formats import Container, Dialect
from pipeline.tensors.binding import Binding
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.testing.container import ContainerContract
from pipeline.testing.dialect import DialectContract
from pipeline.testing.memory import example
from plugins.formats.orbax.container import Orbax
from plugins.formats.orbax.pytree import Pytree
from tests.cases.quantized import quantized


class TestOrbax(ContainerContract):
    def container(self) -> Container:
        return Orbax()


class TestOrbaxInBands(ContainerContract):
    """Small bands: every leaf of more than 40 bytes has an index of several."""

    def container(self) -> Container:
        return Orbax(chunk_nbytes=40)

    def leaves(self) -> dict[str, TensorSpec]:
        """With a prime number of rows, whose last band is not full."""
        return {**super().leaves(), "prime": TensorSpec((1009, 3), "U8"), "inner": TensorSpec((5, 6, 16), "BF16")}


class TestPytree(DialectContract):
    strict = False

    def dialect(self) -> Dialect:
        return Pytree()

    def tensors(self) -> Mapping[str, Any]:
        schemes = {
            "mxfp4": MXFP4,
            "nvfp4": Scheme("e2m1", 16, "e4m3", second="f32"),
            "uint4": Scheme("uint4", 32, "bf16", zero="int"),
            "nf4": Scheme("nf4", 64, "dynamic8", second="dynamic8"),
            "fp8": Scheme("e4m3", 32, "f32", block_rows=4),
        }
        return example() | {f"{n}.weight": quantized(s, (3, 6, 192)) for n, s in schemes.items()}

    def config(self) -> Mapping[str, Any]:
        return {"model_type": "any"}

    def seen(self, binding: Binding) -> dict[str, Any]:
        """The container hands back what it was given to keep."""
        return {**super().seen(binding), **binding.metadata}

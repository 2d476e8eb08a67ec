"""Our own containers keep the contract that we ship."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.formats import Container, Layout
from pipeline.tensors.spec import TensorSpec
from pipeline.testing.container import ContainerContract
from plugins.formats.gguf.file import GgufContainer
from plugins.formats.npy.container import Npy
from plugins.formats.safetensors.container import SafeTensors


class TestSafeTensors(ContainerContract):
    def container(self) -> Container:
        return SafeTensors()


class TestNpy(ContainerContract):
    def container(self) -> Container:
        return Npy()


@dataclass(frozen=True)
class TypedGguf(GgufContainer):
    """With the metadata that a dialect would give."""

    def layout(
        self, leaves: Mapping[str, TensorSpec], metadata: Mapping[str, Any], max_shard_bytes: int | None
    ) -> Layout:
        types = {n: s.dtype for n, s in leaves.items()}
        given = {"kv": {"general.architecture": ("string", "llama")}, "types": types}
        return super().layout(leaves, {"gguf": given}, max_shard_bytes)


class TestGguf(ContainerContract):
    dtypes = ("F64", "F16", "BF16", "I8", "I16", "I32", "I64", "F32")

    def container(self) -> Container:
        return TypedGguf()

    def leaves(self) -> dict[str, TensorSpec]:
        """Ends without padding: a file that lacks its last bytes must lack data."""
        return {**super().leaves(), "end": TensorSpec((8,), "F32")}

    def metadata(self) -> dict[str, Any]:
        return {}

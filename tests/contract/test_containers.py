"""Our own containers keep the contract that we ship."""

from pipeline.formats import Container
from pipeline.testing.container import ContainerContract
from plugins.formats.npy import Npy
from plugins.formats.safetensors import SafeTensors


class TestSafeTensors(ContainerContract):
    def container(self) -> Container:
        return SafeTensors()


class TestNpy(ContainerContract):
    def container(self) -> Container:
        return Npy()

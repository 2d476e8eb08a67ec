"""Our own methods keep the contract that we ship."""

from pipeline.method import Method
from pipeline.testing.method import MethodContract
from plugins.quant.none import Unquantized
from plugins.quant.structs import Structs
from tests.cases.mx import mx_method


class TestMX(MethodContract):
    def method(self) -> Method:
        return mx_method()


class TestMXOtherRules(MethodContract):
    def method(self) -> Method:
        return mx_method(scale_rule="rceil", ties="zero", zero="positive")


class TestStructs(MethodContract):
    def method(self) -> Method:
        return Structs("q4_k")


class TestUnquantized(MethodContract):
    def method(self) -> Method:
        return Unquantized()

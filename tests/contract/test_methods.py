"""Our own methods keep the contract that we ship."""

from pipeline.method import Method
from pipeline.testing.method import MethodContract
from plugins.quant.mx import MX
from plugins.quant.none import Unquantized


class TestMX(MethodContract):
    def method(self) -> Method:
        return MX()


class TestMXOtherRules(MethodContract):
    def method(self) -> Method:
        return MX(scale_rule="rceil", ties="zero", zero="positive")


class TestUnquantized(MethodContract):
    def method(self) -> Method:
        return Unquantized()

"""A run that asks for a quantization and would quantize nothing stops in the plan, and says what would help."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pipeline.errors import PlanError
from pipeline.rules import Rule
from pipeline.stage import Checkpoint, Context
from pipeline.testing.memory import checkpoint, same
from plugins.quant.blockwise import Blockwise
from plugins.quant.none import Unquantized
from stages.quantize import Quantize
from stages.transcode import Transcode
from tests.cases.mx import mx_method

X = np.ones((4, 64), ml_dtypes.bfloat16)
INT8 = Blockwise("int8", 0, "f32", scale_rule="amax")


def quantized(source: Checkpoint, method: Any, *rules: Rule, **more: Any) -> Checkpoint:
    return Quantize(method, rules, **more).run(Context(Path()), source)


@pytest.mark.parametrize("rules", [(), (Rule("keep", "*"),), (Rule("keep", "*"), Rule("quant", "w"))])
def test_rules_that_only_keep(rules: tuple[Rule, ...]) -> None:
    with pytest.raises(
        PlanError, match=r"quant: asks for e2m1/32/e8m0, and no tensor .*model.extra_rules=.*to: quant.*quant=none"
    ) as found:
        quantized(checkpoint({"w": X, "v": X}), mx_method(), *rules)
    assert len(found.value.problems) == 1


def test_rules_that_only_unpack() -> None:
    source = checkpoint({"w": mx_method().encode(X)})
    with pytest.raises(PlanError, match=r"no tensor would be quantized .*to none"):
        quantized(source, INT8, Rule("none", "*"), methods={"none": Unquantized()})


def test_what_is_asked_for_or_there_already_is_no_error() -> None:
    plain, packed = checkpoint({"w": X, "v": X}), checkpoint({"w": mx_method().encode(X)})
    keep = Rule("keep", "*")
    assert quantized(plain, Unquantized(), keep) is plain
    assert quantized(packed, mx_method(), Rule("quant", "*")) is packed
    other = quantized(plain, mx_method(), Rule("int8", "w"), keep, methods={"int8": INT8})
    assert other.store.specs["w"].scheme == INT8.scheme


def test_no_quantization_unpacks_all_that_no_rule_keeps() -> None:
    """An embedding that came as Q8_0, say, which no rule is about."""
    packed = mx_method().encode(X)
    source = checkpoint({"a": packed, "b": packed, "c": packed, "d": X})
    found = quantized(source, Unquantized(), Rule("quant", "a"), Rule("keep", "c")).store
    assert {n: s.scheme is None for n, s in found.specs.items()} == {"a": True, "b": True, "c": False, "d": True}
    assert same(found.read("b"), X)
    assert quantized(source, Unquantized(), Rule("keep", "*")) is source
    assert quantized(source, INT8, Rule("quant", "d")).store.specs["b"].scheme == mx_method().scheme  # as it came


def test_transcoding_packs_nothing() -> None:
    with pytest.raises(PlanError, match=r"quant: asks for e2m1/32/e8m0, and none of the 2 tensors is packed.*flow=con"):
        Transcode(mx_method()).run(Context(Path()), checkpoint({"w": X, "v": X}))
    plain, packed = checkpoint({"w": X}), checkpoint({"w": mx_method().encode(X), "v": X})
    assert Transcode(Unquantized()).run(Context(Path()), plain) is plain
    assert Transcode(mx_method()).run(Context(Path()), packed) is packed
    recoded: Any = Transcode(INT8, allow_requantize=True).run(Context(Path()), packed).store
    assert recoded.specs["w"].scheme == INT8.scheme
    assert same(recoded.read("v"), X)

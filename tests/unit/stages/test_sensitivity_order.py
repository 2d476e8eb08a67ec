"""Sensitivity speaks in the order of the model, and of the worst with rules that may be pasted."""

import pytest
from omegaconf import OmegaConf

from pipeline.config.overrides import parsed_override
from stages.sensitivity import in_order, rules_of, worst_of


def test_layers_in_order() -> None:
    given = ["lm_head.weight", "model.layers.10", "model.layers.2", "model.embed_tokens.weight", "model.layers.1"]
    layers = [n for n in sorted(given, key=in_order) if "layers" in n]
    assert layers == ["model.layers.1", "model.layers.2", "model.layers.10"]


@pytest.mark.parametrize(
    ("kl", "worst"),
    [
        ({"a": 1.0, "b": 9.0, "c": 1.0, "d": 1.0}, ["b"]),
        ({f"l{i}": 1.0 for i in range(12)}, ["l0", "l1", "l2"]),
        ({**{f"l{i}": 1.0 for i in range(11)}, "x": 3.0, "y": 4.0}, ["y", "x"]),
        ({"a": 0.0}, ["a"]),
    ],
)
def test_the_worst(kl: dict[str, float], worst: list[str]) -> None:
    assert worst_of(kl) == worst


def test_rules_are_what_hydra_takes() -> None:
    names = ["model.layers.3", "lm_head.weight"]
    parsed = parsed_override(rules_of("layer", names))
    assert parsed is not None
    assert parsed.get_key_element() == "model.extra_rules"
    assert OmegaConf.create(parsed.value()) == [
        {"match": "model.layers.3.*", "to": "keep"}, {"match": "lm_head.weight", "to": "keep"},
    ]  # fmt: skip
    assert rules_of("role", ["experts"]) == "model.extra_rules=[{role: experts, to: keep}]"
    assert '"model.layers.*.mlp.up_proj.weight"' in rules_of("tensor", ["model.layers.*.mlp.up_proj.weight"])

"""Optional members: found where they are, and missed nowhere in silence."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, ClassVar

import pytest

import plugins
import stages
from pipeline import hooks
from pipeline.config.resolve import Resolver
from pipeline.formats import Container, Dialect, DialectHooks
from pipeline.method import Method, MethodHooks
from pipeline.stage import Stage, StageHooks
from pipeline.tensors.store import TensorStore
from plugins.formats.gguf.model import GgufDialect
from plugins.formats.safetensors.plain import Plain
from plugins.quant.blockwise import Blockwise
from stages.sensitivity import Sensitivity

PROTOCOLS = (Dialect, Method, TensorStore)


def classes() -> Iterator[type]:
    """Every class of the project that stands where others may put theirs."""
    for package in (stages, plugins):
        for found in walk_packages(package.__path__, f"{package.__name__}."):
            if ".references" in found.name or ".bench" in found.name:
                continue
            module = import_module(found.name)
            yield from (c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == found.name)


def test_what_a_plugin_has_and_what_holds_where_it_has_nothing() -> None:
    assert hooks.optional(GgufDialect(), DialectHooks, "peeks") == GgufDialect.peeks
    assert hooks.optional(Plain(), DialectHooks, "peeks") == ()
    assert hooks.optional(object(), MethodHooks, "cuts_rows") is False
    assert "sensitivity.png" in hooks.optional(Sensitivity, StageHooks, "writes")
    with pytest.raises(KeyError):
        hooks.optional(Plain(), DialectHooks, "peek")  # whoever asks for what nobody declared is wrong, and told so


@pytest.mark.parametrize(
    ("contract", "given", "meant"),
    [
        (Dialect, "peek", "peeks"), (Dialect, "takse", "takes"), (Dialect, "owns", "own"),
        (Method, "need_place", "needs_place"), (Method, "cut_rows", "cuts_rows"), (Method, "needsPlace", "needs_place"),
        (TensorStore, "grains", "grain"), (Stage, "peeks", None),
    ],
)  # fmt: skip
def test_a_misspelt_one_is_named_with_the_nearest(contract: Any, given: str, meant: str | None) -> None:
    [said] = hooks.misspelt(type("Mine", (), {given: (), "_private": 1}), contract)
    assert f"Mine has a member {given!r}, which is none that it may have" in said
    assert meant is None or f"did you mean {meant!r}" in said


def test_what_looks_like_none_of_them_is_a_plugins_own_business() -> None:
    assert hooks.misspelt(type("Mine", (), {"helper": 1, "recognizes": 2, "peeks": ()}), Dialect) == ()
    assert hooks.misspelt(type("Mine", (), {"verifies": 1}), Container) == ()  # which has no optional members


@dataclass(frozen=True)
class Peeking(Plain):
    """A dialect of somebody's."""

    peek: ClassVar[tuple[str, ...]] = ("*",)


def test_the_resolver_says_so_where_the_plugin_is_named() -> None:
    resolver = Resolver(("tests",))
    node = {"_target_": f"{__name__}.Peeking"}
    resolver._value([node], tuple[Dialect, ...], "stages.load.dialects")
    assert [p.where for p in resolver.problems] == ["stages.load.dialects[0]"]
    assert "did you mean 'peeks'?" in str(resolver.problems[0])


def test_every_class_here_declares_what_it_has() -> None:
    """Whatever stands for a contract: a stage by its `run`, others by having all that the contract asks for."""
    seen = set()
    for cls in classes():
        own = {n for n in dir(cls) if not n.startswith("_")} | set(getattr(cls, "__dataclass_fields__", ()))
        for contract in (*PROTOCOLS, Stage):
            stage = cls.__module__.startswith("stages.") and is_dataclass(cls)
            if hooks.members(contract) <= own and (contract is not Stage or stage):
                seen.add(contract)
                assert hooks.misspelt(cls, contract) == (), cls
    assert seen == {*PROTOCOLS, Stage}
    assert Blockwise in set(classes())

"""What is made of a dataclass quickly is what Python makes of it; a module that is left out is there later."""

import copy
import inspect
import subprocess
import sys
from dataclasses import FrozenInstanceError, dataclass, field, make_dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline import importing

ROOT = Path(__file__).parents[2]


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_create_fn", "_frozen_get_del_attr", "_repr_fn", "inspect"):
        there = getattr(sys.modules["dataclasses"], name, None)
        monkeypatch.setattr(f"dataclasses.{name}", there, raising=False)  # to be put back
    importing.quickly()


def made() -> dict[str, Any]:
    @dataclass(frozen=True)
    class Plain:
        a: int
        b: str = "x"
        hidden: int = field(default=0, repr=False)

    @dataclass(frozen=True)
    class Below(Plain):
        c: Any = None

    @dataclass(frozen=True, slots=True)
    class Slots:
        a: int = 1

    @dataclass(frozen=True)
    class Empty: ...

    @dataclass(frozen=True, repr=False)
    class Own:
        a: int = 1

        def __repr__(self) -> str:
            return "own"

    @dataclass
    class Open:
        a: Any = 1

    class Added(Plain): ...

    @dataclass(order=True)
    class Ordered(Open):
        self: int = 2  # a field of that name

        def __post_init__(self) -> None:
            super().__init__(self.a)

    return {cls.__name__: cls for cls in (Plain, Below, Slots, Empty, Own, Open, Added, Ordered)}


def said(classes: dict[str, Any]) -> list[str]:
    found = []
    for name, cls in classes.items():
        one = cls(1) if name != "Empty" else cls()
        found += [repr(one), cls.__repr__.__qualname__, repr(vars(cls).keys())]
        for change in (
            lambda one: setattr(one, "a", 2), lambda one: delattr(one, "a"), lambda one: setattr(one, "z", 2),
            lambda one: delattr(one, "z"), lambda one: setattr(one, "hidden", 2),
        ):  # fmt: skip
            try:
                change(one)
                found.append(repr(vars(one)))
            except Exception as why:
                found.append(f"{type(why).__name__}: {why}")
        found += [f"{hash(one)}"] if cls.__hash__ else []
        found += [
            f"{one == copy.copy(one)} {one == 1} {inspect.signature(cls)} {cls.__doc__} {cls.__init__.__qualname__}"
        ]
        for wrong in (
            lambda cls=cls: cls(1, 2, 3, 4),
            lambda cls=cls: cls(other=1),
            lambda one=one: one < copy.copy(one),
        ):
            try:
                found.append(repr(wrong()))
            except TypeError as why:
                found.append(str(why))
    loop = classes["Open"]([])
    loop.a.append(loop)
    return [*found, repr(loop)]


def test_a_class_says_and_refuses_what_it_does_otherwise(request: pytest.FixtureRequest) -> None:
    expected = said(made())
    assert any("FrozenInstanceError: cannot assign to field 'a'" in line for line in expected)
    assert any("Open(a=[...])" in line for line in expected)
    request.getfixturevalue("quickly")
    assert said(made()) == expected


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python itself compiles all methods of a class together")
@pytest.mark.usefixtures("quickly")
def test_what_is_not_compiled_is_of_ours() -> None:
    cls = make_dataclass("Made", ["a"], frozen=True, slots=True)
    assert cls.__setattr__.__module__ == cls.__delattr__.__module__ == importing.__name__
    with pytest.raises(FrozenInstanceError):
        cls(1).a = 2


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python itself compiles all methods of a class together")
@pytest.mark.usefixtures("quickly")
def test_a_method_is_compiled_once_by_whoever_asks_first() -> None:
    cls = make_dataclass("Made", ["a"], frozen=True, slots=True, namespace={"__doc__": "has one"})
    below = type("Below", (cls,), {})

    def compiled() -> set[str]:
        return {name for name in ("__init__", "__eq__", "__hash__") if inspect.isfunction(vars(cls)[name])}

    assert compiled() == set()
    one = below(1)
    assert compiled() == {"__init__"}
    assert {one: 2}[one] == 2
    assert compiled() == {"__init__", "__hash__"}
    assert one == below(1)
    assert compiled() == {"__init__", "__eq__", "__hash__"}


@pytest.mark.usefixtures("quickly")
def test_only_of_hydras_classes_nothing_is_said() -> None:
    def doc(module: str) -> str | None:
        cls: type = type("Made", (), {"__module__": module, "__annotations__": {"a": int}})
        return dataclass(cls).__doc__

    assert (doc("stages.x"), doc("hydra.x")) == ("Made(a: int)", "Made")


def test_a_module_is_left_out_for_now_only() -> None:
    code = (
        "import sys\nfrom pipeline.importing import without\n"
        "with without('wave'):\n    assert sys.modules['wave'] is None\nassert 'wave' not in sys.modules\nimport wave\n"
        "with without('wave'):\n    assert sys.modules['wave'] is wave\nassert sys.modules['wave'] is wave"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)

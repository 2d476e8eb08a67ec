"""What is made of a dataclass quickly is what Python makes of it; a module that is left out is there later."""

import copy
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
    for name in ("_frozen_get_del_attr", "_repr_fn"):
        monkeypatch.setattr(f"dataclasses.{name}", getattr(sys.modules["dataclasses"], name))  # to be put back
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

    return {cls.__name__: cls for cls in (Plain, Below, Slots, Empty, Own, Open, Added)}


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
        found += [f"{hash(one)} {one == copy.copy(one)}"] if name != "Open" else []
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
    cls = make_dataclass("Made", ["a"], frozen=True)
    assert cls.__setattr__.__module__ == cls.__delattr__.__module__ == importing.__name__
    with pytest.raises(FrozenInstanceError):
        cls(1).a = 2


def test_a_module_is_left_out_for_now_only() -> None:
    code = (
        "import sys\nfrom pipeline.importing import without\n"
        "with without('wave'):\n    assert sys.modules['wave'] is None\nassert 'wave' not in sys.modules\nimport wave\n"
        "with without('wave'):\n    assert sys.modules['wave'] is wave\nassert sys.modules['wave'] is wave"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)

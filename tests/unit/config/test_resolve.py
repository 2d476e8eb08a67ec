"""Config nodes become live objects; everything that is wrong with them is said at once, under its full key."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import pytest

from pipeline.config.resolve import OWN_PACKAGES, Resolver
from pipeline.errors import ConfigError

HERE = __name__


class Speaks(Protocol):
    volume: int

    def speak(self) -> str: ...


@dataclass(frozen=True)
class Dog:
    volume: int = 3

    def speak(self) -> str:
        return "woof"


@dataclass(frozen=True)
class Stone:
    weight: float = 1.0


@dataclass(frozen=True)
class Pair:
    """Not a plugin: a plain record inside another node."""

    left: int
    right: str = "r"


@dataclass(frozen=True)
class Everything:
    count: int = 0
    share: float = 0.0
    on: bool = False
    text: str = ""
    maybe: str | None = None
    many: tuple[str, ...] = ()
    numbers: list[int] = field(default_factory=list)
    seq: Sequence[int] = ()
    table: Mapping[str, float] = field(default_factory=dict)
    plain: dict[str, int] = field(default_factory=dict)
    choice: Literal["a", "b", 3] = "a"
    mixed: int | str = 0
    path: Path = Path()
    anything: Any = None
    pair: Pair | None = None
    pairs: tuple[Pair, ...] = ()
    voice: Speaks | None = None
    voices: tuple[Speaks, ...] = ()
    stone: Stone | None = None


@dataclass(frozen=True)
class Needs:
    this: int
    that: int
    other: int = 0


@dataclass(frozen=True)
class Picky:
    how: str = "well"

    def __post_init__(self) -> None:
        if self.how == "badly":
            raise ConfigError("how='badly' is not allowed")
        if self.how == "worse":
            raise ValueError("how='worse' is not allowed either")


class NotADataclass:
    pass


def node(cls: str, **fields: Any) -> dict[str, Any]:
    return {"_target_": f"{HERE}.{cls}", **fields}


def resolver() -> Resolver:
    return Resolver(["tests"])


def build(cls: str, **fields: Any) -> Any:
    r = resolver()
    built = r.build(node(cls, **fields), "here")
    assert r.problems == []
    return built


def problems(cls: str, **fields: Any) -> list[str]:
    r = resolver()
    assert r.build(node(cls, **fields), "here") is None
    return [str(p) for p in r.problems]


def test_own_packages_are_stages_and_plugins() -> None:
    assert OWN_PACKAGES == ("stages", "plugins")


def test_a_node_becomes_a_frozen_instance() -> None:
    built = build("Dog", volume=11)
    assert built == Dog(11)
    with pytest.raises(FrozenInstanceError):
        built.volume = 1


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("count", 7, 7),
        ("share", 1, 1.0),
        ("share", 0.5, 0.5),
        ("on", True, True),
        ("text", "x", "x"),
        ("text", 20, "20"),
        ("maybe", None, None),
        ("maybe", "x", "x"),
        ("many", ["a", "b"], ("a", "b")),
        ("numbers", [1, 2], [1, 2]),
        ("seq", [1, 2], (1, 2)),
        ("table", {"a": 1}, {"a": 1.0}),
        ("plain", {}, {}),
        ("choice", 3, 3),
        ("mixed", "x", "x"),
        ("mixed", 3, 3),
        ("path", "/x/y", Path("/x/y")),
        ("anything", {"k": [1]}, {"k": [1]}),
        ("pair", {"left": 1}, Pair(1)),
        ("pairs", [{"left": 1}, {"left": 2, "right": "x"}], (Pair(1), Pair(2, "x"))),
        ("voice", node("Dog"), Dog()),
        ("voices", [node("Dog"), node("Dog", volume=1)], (Dog(), Dog(1))),
        ("stone", node("Stone", weight=2), Stone(2.0)),
    ],
)
def test_values(key: str, given: Any, value: Any) -> None:
    got = getattr(build("Everything", **{key: given}), key)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        ("count", "7", "here.count: a whole number is expected, got '7'"),
        ("count", 1.0, "here.count: a whole number is expected, got 1.0"),
        ("count", True, "here.count: a whole number is expected, got True"),
        ("count", None, "here.count: a whole number is expected, got None"),
        ("share", "x", "here.share: a number is expected, got 'x'"),
        ("share", True, "here.share: a number is expected, got True"),
        ("on", 1, "here.on: true or false is expected, got 1"),
        ("on", "yes", "here.on: true or false is expected, got 'yes'"),
        ("text", True, "here.text: text is expected, got True"),
        ("maybe", [], r"here.maybe: text is expected, got \[\]"),
        ("many", "a", "here.many: a list is expected, got 'a'"),
        ("many", ["a", None], r"here.many\[1\]: text is expected, got None"),
        ("numbers", [1, "x", "y"], r"here.numbers\[1\]: a whole number is expected, got 'x'"),
        ("table", {"a": "x"}, "here.table.a: a number is expected, got 'x'"),
        ("table", 3, "here.table: a mapping is expected, got 3"),
        ("choice", "c", r"here.choice: 'c' is not a choice.*\(allowed: a, b, 3\)"),
        ("mixed", 1.5, "here.mixed: a whole number or text is expected, got 1.5"),
        ("pair", {"lef": 1}, r"here.pair.lef: Pair has no field 'lef'; did you mean 'left'"),
        ("pairs", [{"left": 1}, {}], r"here.pairs\[1\].left: is required by Pair and not set"),
        ("voice", node("Stone"), "here.voice: Stone is not a Speaks: it lacks speak, volume"),
        ("voices", [node("Dog"), node("Stone")], r"here.voices\[1\]: Stone is not a Speaks"),
        ("stone", node("Dog"), "here.stone: a Stone is expected, got Dog"),
        ("stone", "granite", "here.stone: a mapping is expected, of {weight: …}, got 'granite'"),
        ("voice", node("Dog", volum=1), r"here.voice.volum: Dog has no field 'volum'; did you mean 'volume'"),
    ],
)
def test_wrong_values(key: str, given: Any, message: str) -> None:
    first, *_ = problems("Everything", **{key: given})
    assert re.match(message, first), first


def test_all_problems_are_found_at_once() -> None:
    found = problems("Everything", cuont=1, share="x", choice="z", pair={"left": "l", "rigth": 1}, numbers=["a", "b"])
    assert [f.partition(": ")[0] for f in found] == [
        "here.cuont", "here.share", "here.choice", "here.pair.rigth", "here.pair.left",
        "here.numbers[0]", "here.numbers[1]",
    ]  # fmt: skip


def test_every_missing_field_is_named() -> None:
    assert problems("Needs", other=1) == [
        "here.this: is required by Needs and not set",
        "here.that: is required by Needs and not set",
    ]


@pytest.mark.parametrize(
    ("how", "said"), [("badly", "how='badly' is not allowed"), ("worse", "how='worse' is not allowed either")]
)
def test_what_a_class_itself_refuses_is_a_problem(how: str, said: str) -> None:
    assert problems("Picky", how=how) == [f"here: {said}"]


@pytest.mark.parametrize(
    "target",
    [
        "os.system", "subprocess.Popen", "builtins.exec", "pipeline.running.journal.Journal", "hydra.utils.call",
        "stages_evil.X",
        "", ".", "stages", "stages.", "stages..load", "plugins..Load", 7, None, ["stages.load.Load"],
    ],
)  # fmt: skip
def test_nothing_outside_the_allow_list(target: Any) -> None:
    r = Resolver()
    assert r.build({"_target_": target}, "quant") is None
    assert len(r.problems) == 1


@pytest.mark.parametrize(
    "target",
    [
        "stages.load.json.loads",  # a function reached through a module of ours
        "stages.load.Path",  # somebody else's class imported by a module of ours
        "stages.export_work.shutil",
        "plugins.formats.safetensors.container.os",
        "stages.load.Load.run",
        "stages.load.InputFile",  # a dataclass, but of pipeline
    ],
)
def test_nothing_borrowed_by_an_allowed_module(target: str) -> None:
    r = Resolver()
    assert r.build({"_target_": target}, "stages.x") is None
    assert len(r.problems) == 1


def test_a_class_that_is_no_dataclass_is_refused_and_the_nearest_is_named() -> None:
    assert "is not a dataclass" in problems("NotADataclass")[0]
    assert "did you mean 'Everything'" in problems("Evrything")[0]


def test_a_module_that_is_not_there() -> None:
    r = Resolver()
    r.build({"_target_": "stages.laod.Load"}, "stages.load")
    assert "no module 'stages.laod'" in str(r.problems[0])
    assert "did you mean 'stages.load'" in str(r.problems[0])


@pytest.mark.parametrize("given", [None, 3, [], {}, {"volume": 3}, "Dog"])
def test_a_node_needs_a_target(given: Any) -> None:
    r = resolver()
    assert r.build(given, "here") is None
    assert "`_target_` is expected" in str(r.problems[0])


def test_typed_records_need_no_target() -> None:
    r = resolver()
    assert r.typed({"left": 3}, Pair, "config") == Pair(3)
    assert r.typed({"left": "x"}, Pair, "config") is None
    assert str(r.problems[0]) == "config.left: a whole number is expected, got 'x'"

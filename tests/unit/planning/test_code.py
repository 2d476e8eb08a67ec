"""Which code a class can reach: what changes it when edited, and what does not."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.config import extend
from pipeline.planning import code
from pipeline.planning.code import Sources, reach, sees_seed
from stages.decode import Decode
from stages.evaluate import Evaluate
from stages.load import Load
from stages.parity import Parity

FILES = {
    "pipeline/stage.py": "import numpy\n",
    "pipeline/errors.py": "import requests\n",
    "pipeline/reporting/__init__.py": "def f():\n    from pipeline.reporting import plots\n",
    "pipeline/reporting/plots.py": "",
    "pipeline/reporting/tables.py": "import rich\nimport json\n",
    "stages/a.py": (
        "from typing import TYPE_CHECKING\n"
        "from pipeline.stage import Context\n"
        "from pipeline.reporting.tables import x\n"
        "from plugins.ours import near\n"
        "from pipeline.errors import StageError\n"
        "if TYPE_CHECKING:\n    from plugins.ours import types_only\n"
        "def f():\n    from .b import g\n"
    ),
    "stages/b.py": "from plugins.ours.native import run\n",
    "plugins/ours/near.py": "",
    "plugins/ours/far.py": "",
    "plugins/ours/types_only.py": "",
    "plugins/ours/native/__init__.py": "from plugins.ours.native.build import run\n",
    "plugins/ours/native/build.py": "",
    "plugins/ours/native/core.cpp": "int x;",
    "plugins/ours/native/core.h": "",
    "plugins/ours/native/tiles.yaml": "sizes: [1]",
    "plugins/ours/native/option.yaml": "_target_: plugins.ours.native.X",
    "plugins/ours/native/notes.md": "",
}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A house with two stages; nothing of it is imported."""
    root = tmp_path / "house"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(extend, "ROOT", root)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fresh()
    yield root
    fresh()


def fresh() -> None:
    """As in another process."""
    for kept in (code._reach, code._said, code._imported, code._source, code._exists, code._stems, code._beside):
        kept.cache_clear()
    code._sources.cache_clear()


def test_imports_are_followed_those_in_functions_too(tree: Path) -> None:
    found = reach(["stages.a"])
    assert list(found.code) == [
        "pipeline.reporting",
        "pipeline.reporting.tables",
        "pipeline.stage",
        "plugins.ours.native",
        "plugins.ours.native.build",
        "plugins.ours.native/core.cpp",
        "plugins.ours.native/core.h",
        "plugins.ours.native/tiles.yaml",
        "plugins.ours.near",
        "stages.a",
        "stages.b",
    ]  # not what only type checkers import, nor what the package `reporting` imports when it is called
    assert list(found.libraries) == ["numpy"]  # rich shows, json comes with Python


UNREACHED = {
    "pipeline/errors.py",
    "pipeline/reporting/plots.py", "plugins/ours/far.py", "plugins/ours/types_only.py",
    "plugins/ours/native/option.yaml", "plugins/ours/native/notes.md",
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_an_edit_counts_where_it_can_be_reached(tree: Path, name: str) -> None:
    before = reach(["stages.a"])
    with (tree / name).open("a") as file:
        file.write("\n# a comment\n")
    fresh()
    now = reach(["stages.a"])
    module = name.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
    called = module if name.endswith(".py") else "plugins.ours.native/" + Path(name).name
    assert [m for m in now.code if now.code[m] != before.code.get(m)] == ([] if name in UNREACHED else [called])


def test_the_users_folder_is_followed_after_ours(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine"
    (mine / "stages").mkdir(parents=True)
    (mine / "stages" / "prune.py").write_text("from plugins.ours.far import x\n")
    (mine / "stages" / "a.py").write_text("not even python")  # ours wins
    monkeypatch.setenv("WEIGHTMILL_CONFIG_DIR", str(mine))
    assert list(reach(["stages.prune"]).code) == ["plugins.ours.far", "stages.prune"]
    assert "stages.b" in reach(["stages.a"]).code


def test_what_was_read_is_kept_until_the_file_is_another(tree: Path, tmp_path: Path) -> None:
    file, kept = tree / "stages/a.py", tmp_path / "code.json"
    more = "import os, json.decoder as d\nfrom . import é, b\nfrom .. import *\nfrom ...c.d import e\n"
    more += "def f():\n    from x import y\n"
    file.write_text(FILES["stages/a.py"] + more)
    sources = Sources(kept)
    first = sources.read(file)
    sources.keep()
    assert Sources(kept).read(file) == first
    said = (("os", ()), ("json.decoder", ()), (".", ("é", "b")), ("..", ("*",)), ("...c.d", ("e",)))
    assert (first.at_once[-5:], first.later[-1]) == (said, ("x", ("y",)))
    file.write_text(FILES["stages/a.py"] + "import plugins.ours.far\n")
    assert Sources(kept).read(file).at_once != first.at_once
    kept.write_text("{")
    assert Sources(kept).read(file).digest
    locked = Sources(Path("/proc/nowhere/code.json"))
    assert locked.read(file).digest
    locked.keep()  # costs time only


def test_nothing_of_a_framework_is_imported_to_tell() -> None:
    before = {"jax", "torch"} & set(sys.modules)
    found = reach(["stages.evaluate", "plugins.engine.engine", "plugins.engine.loader"])
    assert {"jax", "jaxlib", "flax"} <= set(found.libraries)
    assert {"jax", "torch"} & set(sys.modules) == before
    assert not [m for m in found.code if m.startswith(("plugins.bench", "pipeline.config", "pipeline.errors"))]


class Seeded:
    def run(self, ctx: "Context") -> None:
        helper(ctx)


def helper(context: "Context") -> int:
    return context.seed


class Context:
    seed = 1


def test_who_can_see_the_seed() -> None:
    assert [c.__name__ for c in (Load, Decode, Evaluate) if sees_seed(c)] == []
    assert sees_seed(Parity)
    assert sees_seed(Seeded)


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        ("return ctx.run_dir", False),
        ("return self.other(ctx)", False),
        ("return ctx.seed", True),
        ("return elsewhere.f(ctx)", True),
        ("c = ctx; return c", True),
        ("return getattr(ctx, 'se' + 'ed')", True),
    ],
)
def test_a_context_that_is_handed_on_may_be_asked_for_its_seed(tmp_path: Path, body: str, seen: bool) -> None:
    path = tmp_path / "stage.py"
    path.write_text(f"class S:\n    def run(self, ctx, x):\n        {body}\n    def other(self, ctx: Context): pass\n")
    assert Sources(tmp_path / "kept.json").read(path).sees_seed == seen


def test_what_is_kept_stays_small(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "MOST", 2)
    kept, files = tmp_path / "code.json", [tree / f"stages/{n}.py" for n in "xyz"]
    sources = Sources(kept)
    for file in files:
        file.write_text("import os\n")
        sources.read(file)
    files[0].write_text("import sys\n")
    sources.read(files[0])
    sources.keep()
    assert [*json.loads(kept.read_text())["files"]] == [str(files[2]), str(files[0])]

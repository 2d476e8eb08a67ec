"""An error names the function that raised, and not only the chunk that pulled on it."""

from types import ModuleType
from typing import Any

from pipeline.running.blame import blamed


def module(name: str, code: str, **known: Any) -> ModuleType:
    found = ModuleType(name)
    vars(found).update(known)
    exec(code, vars(found))  # noqa: S102  ours
    return found


PRUNE = module("stages.prune", "def prune():\n    return 1 / 0")
VIEWS = module("pipeline.tensors.views", "def read():\n    return prune()", prune=PRUNE.prune)
EXPORT = module("stages.export_work", "def chunk():\n    return read()\ndef bad():\n    return 1 / 0", read=VIEWS.read)
TASKS = module("pipeline.running.tasks", "def do(fn):\n    return fn()")


ATTEMPT = """
def told(fn):
    try:
        do(fn)
    except ZeroDivisionError as why:
        return blamed("export 1/3", why)
"""
GRAPH = module("pipeline.running.graph", ATTEMPT, do=TASKS.do, blamed=blamed)
told = GRAPH.told


def test_what_a_chunk_pulls_on_is_named() -> None:
    assert told(EXPORT.chunk) == "stages.prune.prune (for export 1/3)"


def test_a_chunk_that_fails_itself_is_named() -> None:
    assert told(EXPORT.bad) == "export 1/3"

"""Which code a class can reach: its module, what that imports, and so on, without importing anything.

Imports are followed through our own packages, the user's folder and installed plugins, those inside functions too; what
only type checkers import is not. A package that is reached only because a module lies in it counts with what its
`__init__` does when it is imported. What lies beside a module and is compiled or read by it (C++, YAML) counts with it,
but for YAML that configures plugins: its values are in the config. Of other libraries the version counts. What only
composes, schedules and words errors is left out (`SILENT`, `DOORS`).
"""

import ast
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline.config import extend
from pipeline.digest import digest
from pipeline.errors import SourceError, StorageError
from pipeline.files import cache_folder, read_whole, write_over

VERSION = 2  # of the file that keeps what was found
MOST = 2000  # files of code that are kept; of those read earliest, in trees that are gone, there is no end
OWN = ("pipeline", "stages", "plugins")
BESIDE = frozenset({".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".yaml", ".yml"})
YAML = frozenset({".yaml", ".yml"})
SILENT = frozenset({"dask", "distributed", "hydra", "matplotlib", "omegaconf", "rich", "xxhash"})
"""Libraries that compose, schedule, hash and show: no value of a result is theirs."""
DOORS = ("pipeline.api", "pipeline.config", "pipeline.errors", "pipeline.redact", "pipeline.terminal")
"""Of ours the same: what makes a config of what was typed (all of which is in the key), and what words errors."""
TOGETHER = {"jax": ("jax", "jaxlib")}

Import = tuple[str, tuple[str, ...]]
"""`from a import b, c` is ("a", ("b", "c")); `import a` is ("a", ())."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What can be reached.

    Attributes:
        code: module, or file beside one → digest of its content.
        libraries: distribution → version.
    """

    code: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)


def sees_seed(stage: type) -> bool:
    """Whether a stage's code can look at the run's seed: its module says `.seed`, or hands its context on."""
    for cls in stage.__mro__[:-1]:
        path = getattr(sys.modules.get(cls.__module__), "__file__", None)
        if path is None or not path.endswith(".py") or _sources().read(Path(path)).sees_seed:
            return True
    return False


def reach(modules: Iterable[str]) -> Reach:
    """What the code of `modules` can reach, and they themselves."""
    return _reach(tuple(sorted(set(modules))), tuple(map(str, extend.roots())))


# Within a process code is what was imported. A plan asks of many classes, which reach much of the same.
@cache
def _reach(modules: tuple[str, ...], guests: tuple[str, ...]) -> Reach:
    plugins = frozenset(m.partition(".")[0] for m in modules)
    code: dict[str, str] = {}
    libraries: set[str] = set()
    seen: dict[str, bool] = {}
    due = [(m, True) for m in modules]
    roots = cache(lambda top: _roots(top, plugins))
    while due:
        name, whole = due.pop()
        if name in seen and (seen[name] or not whole):
            continue
        seen[name] = whole
        if name.startswith(DOORS):
            continue
        package, _, last = name.rpartition(".")
        folders = roots(name.partition(".")[0])
        if not folders:
            libraries.add(name.partition(".")[0])
            continue
        if last and package:
            due.append((package, False))
        if (path := _source(name, folders)) is None:  # a folder without an `__init__`
            continue
        said = _said(path)
        code[name] = said.digest
        package = name if path.name == "__init__.py" else package
        if whole:
            code |= {f"{package}/{file}": found for file, found in _beside(path.parent).items()}
        for module, names in (*said.at_once, *(said.later if whole else ())):
            module = _absolute(module, package)
            needs = _imported(module, names, roots(module.partition(".")[0]))
            due += [(n, w and whole) for n, w in needs]  # what nobody calls imports no more than it does at once
    _sources().keep()
    return Reach(dict(sorted(code.items())), _versions(libraries))


@cache
def _said(path: Path) -> "Source":
    return _sources().read(path)


@cache
def _imported(module: str, names: tuple[str, ...], folders: tuple[str, ...]) -> tuple[tuple[str, bool], ...]:
    """Modules that `from module import names` needs; the package in whole only when it gives a name of its own."""
    inner = [n for n in names if folders and _exists(f"{module}.{n}", folders)]
    return ((module, len(inner) < len(names) or not names), *((f"{module}.{n}", True) for n in inner))


def _absolute(module: str, package: str) -> str:
    """`..a` imported in `package`, written out."""
    level = len(module) - len(module.lstrip("."))
    if not level:
        return module
    parts = package.split(".")
    return ".".join(filter(None, (*parts[: len(parts) - level + 1], module[level:])))


def _roots(top: str, plugins: frozenset[str]) -> tuple[str, ...]:
    """Folders that hold the top-level package: one of ours, or of a plugin that a config names; none for a library."""
    if top in OWN:
        guest = extend.folder()
        return (str(extend.ROOT), *([str(guest)] if guest and top in extend.PACKAGES else []))
    places = getattr(sys.modules.get(top), "__path__", ()) if top in plugins else ()
    return tuple(str(Path(p).parent) for p in places)


@cache
def _exists(name: str, folders: tuple[str, ...]) -> bool:
    return _source(name, folders) is not None or any(os.path.isdir(base) for base in _places(name, folders))


@cache
def _source(name: str, folders: tuple[str, ...]) -> Path | None:
    for base in _places(name, folders):
        for path in (f"{base}.py", os.path.join(base, "__init__.py")):
            if os.path.isfile(path):
                return Path(path)
    return None


def _places(name: str, folders: tuple[str, ...]) -> Iterator[str]:
    """Where a module lies, without an ending: most names that are imported are of no module, and nothing is there."""
    *parts, last = name.split(".")
    for folder in folders:
        inner = os.path.join(folder, *parts)
        if last in _stems(inner):
            yield os.path.join(inner, last)


@cache
def _stems(folder: str) -> frozenset[str]:
    """What lies in a folder, without endings."""
    try:
        return frozenset(name.partition(".")[0] for name in os.listdir(folder))
    except OSError:
        return frozenset()


@cache
def _beside(folder: Path) -> Mapping[str, str]:
    """What modules in `folder` may compile or read, there or in its `src`: file → digest."""
    found = {}
    for path in sorted(p for p in (*folder.iterdir(), *folder.glob("src/*")) if p.suffix in BESIDE):
        content = path.read_bytes()
        if path.suffix not in YAML or b"_target_:" not in content:
            found[path.relative_to(folder).as_posix()] = digest(content)
    return found


def _versions(libraries: Iterable[str]) -> dict[str, str]:
    """Distribution → version, of those top-level packages that are installed and compute."""
    found = {}
    for library in sorted({*libraries} - SILENT - sys.stdlib_module_names):
        for distribution in TOGETHER.get(library, (library,)):
            if (version := version_of(distribution)) is not None:
                found[distribution] = version
    return found


def version_of(distribution: str) -> str | None:
    """Of what is installed, or None: it may be later."""
    try:
        return _version(distribution)
    except metadata.PackageNotFoundError:
        return None


@cache
def _version(distribution: str) -> str:
    """Its page comes in the same file; `metadata.version` looks through that as well.

    Raises:
        PackageNotFoundError: it is not installed.
    """
    found = metadata.distribution(distribution)
    head = (found.read_text("METADATA") or "").partition("\n\n")[0]
    said = re.search(r"^Version: *(\S+)$", head, re.MULTILINE)
    return said[1] if said else found.version


@dataclass(frozen=True, slots=True)
class Source:
    """What a file of code says: the digest of its content, what it imports at once, and what inside functions."""

    digest: str
    sees_seed: bool
    at_once: tuple[Import, ...]
    later: tuple[Import, ...]


class Sources:
    """Files of code, read again only when their path, size, time or inode are others; what was found is kept in a file,
    where that can be written."""

    def __init__(self, kept: Path):
        self._kept = kept
        self._new = False
        try:
            found = json.loads(read_whole(kept))
            self._known = {str(k): v for k, v in found["files"].items()} if found["version"] == VERSION else {}
        except (SourceError, ValueError, KeyError, TypeError, AttributeError):
            self._known = {}

    def read(self, path: Path) -> Source:
        """
        Raises:
            SourceError: it cannot be read, or is no Python.
        """
        try:
            there = path.stat()
            stamp = [there.st_size, there.st_mtime_ns, there.st_ino]
            if (known := _kept(self._known.get(str(path)), stamp)) is not None:
                return known
            content = path.read_bytes()
            tree = ast.parse(content)
            source = Source(digest(content), _seed_in(tree), *_imports(tree))
        except (OSError, SyntaxError, ValueError) as why:
            raise SourceError(f"{path}: {why}") from None
        self._known.pop(str(path), None)  # or it would stay where it was, among the oldest
        at_once, later = _written(source.at_once), _written(source.later)
        self._known[str(path)] = [stamp, source.digest, source.sees_seed, at_once, later]
        self._new = True
        return source

    def keep(self) -> None:
        """Write what is new; a cache that cannot be written only costs time."""
        if self._new:
            with suppress(StorageError, OSError):
                known = dict([*self._known.items()][-MOST:])
                # In one line, which is written in a tenth of the time: nobody reads it.
                write_over(self._kept, json.dumps({"version": VERSION, "files": known}).encode())
            self._new = False


def _kept(known: Any, stamp: Any) -> Source | None:
    """What was kept of a file, if that is still the same and was kept by this version."""
    try:
        if known[0] == stamp:
            at_once, later = map(_read, known[3:])
            return Source(str(known[1]), bool(known[2]), at_once, later)
    except (TypeError, ValueError, LookupError, AttributeError):
        pass
    return None


def _written(imports: Iterable[Import]) -> str:
    """As one text, which is taken apart when the file is asked for: a plan asks for few of those that are kept."""
    return " ".join(f"{module}:{','.join(names)}" for module, names in imports)


def _read(text: str) -> tuple[Import, ...]:
    """What `_written` wrote."""
    parted = (one.partition(":") for one in text.split())
    return tuple((module, tuple(names.split(",")) if names else ()) for module, _, names in parted)


@cache
def _sources() -> Sources:
    return Sources(cache_folder() / "code.json")


def _imports(tree: ast.Module) -> tuple[tuple[Import, ...], tuple[Import, ...]]:
    """What a module imports at once, and what inside functions."""
    at_once: list[Import] = []
    later: list[Import] = []

    def visit(node: ast.AST, found: list[Import]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found += [(a.name, ()) for a in child.names]
            elif isinstance(child, ast.ImportFrom):
                found.append(("." * child.level + (child.module or ""), tuple(a.name for a in child.names)))
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for other in child.orelse:
                    visit(ast.Module([other], []), found)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                visit(child, later)
            else:
                visit(child, found)

    visit(tree, at_once)
    return tuple(at_once), tuple(later)


def _seed_in(tree: ast.Module) -> bool:
    """Whether anything here says `.seed`, or hands a `Context` to a function that is not from here."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    contexts = {
        a.arg for f in functions for a in f.args.args if a.annotation and "Context" in ast.unparse(a.annotation)
    }
    contexts |= {f.args.args[1].arg for f in functions if f.name == "run" and len(f.args.args) > 1}
    here = {f.name for f in functions}
    harmless: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node.attr == "seed":
                return True
            harmless.add(node.value)
        elif isinstance(node, ast.Call):
            func = node.func
            own = isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "self"
            if own or (isinstance(func, ast.Name) and func.id in here):
                harmless.update(node.args)
    names = (n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in contexts)
    return any(n not in harmless for n in names)

"""A user's own folder beside ours: with `--config-dir DIR`, DIR mirrors the house.

Hydra finds DIR/stages/NAME.yaml; DIR/stages/NAME.py is importable as `stages.NAME`, and DIR/plugins/quant/foo.py as
`plugins.quant.foo`. Each of our packages that takes guests says so in its `__init__`:

    __path__ = extended(__name__, __path__)

The folder travels in the environment, so that worker processes find the same modules; to workers that somebody else
started (`dask.address`) its files are sent. Our own modules win over the user's, and DIR's folders need no
`__init__.py`.
"""

import atexit
import importlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePosixPath

# Every process comes through here first, and one that begins anew (`pipeline.huge_pages`) twice: what receives code
# imports what that takes.

VARIABLE = "WEIGHTMILL_CONFIG_DIR"
NAME = "weightmill"  # the package through which our others are found, whatever folder a process starts in
PACKAGES = ("stages", "plugins")
ROOT = Path(__file__).parents[2]


class _Ours:
    """Finds our packages where this one is. Started in the user's folder, Python would take its `stages` for ours."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(ROOT)]) if name in ("pipeline", *PACKAGES) else None


sys.meta_path.insert(0, _Ours)


def folder() -> Path | None:
    """The user's folder, if there is one."""
    return Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None


def extended(package: str, path: Iterable[str]) -> list[str]:
    """`path`, and after it the user's folder for `package` (`plugins.quant` → DIR/plugins/quant) if it exists."""
    own, guest = list(path), folder()
    theirs = guest.joinpath(*package.split(".")) if guest else None
    return [*own, str(theirs)] if theirs and theirs.is_dir() and str(theirs) not in own else own


def use(config_dir: Path | str) -> None:
    """Make `config_dir` the user's folder, also for packages that are imported already (tests, notebooks)."""
    os.environ[VARIABLE] = str(Path(config_dir).absolute())
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES and hasattr(module, "__path__"):
            module.__path__ = extended(name, module.__path__)


def roots() -> list[Path]:
    """Folders of the user's code, for the identity of a run."""
    guest = folder()
    return [guest / package for package in PACKAGES if guest and (guest / package).is_dir()]


def by_name() -> bool:
    """Whether this process came to us by our own name; those that it starts have to do so too."""
    return NAME in sys.modules


def files() -> dict[str, bytes]:
    """The user's code, for machines that do not have the folder: path below it → content."""
    guest = folder()
    found = (p for root in roots() for p in sorted(root.rglob("*")) if p.is_file() and "__pycache__" not in p.parts)
    return {p.relative_to(guest).as_posix(): p.read_bytes() for p in found} if guest else {}


class _Received:
    """The code that this process was sent, and how many tasks are at work with it.

    Attributes:
        code: its `version`; None: nothing was sent yet.
        place: the folder where it lies; None: it has no files.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.code: str | None = None
        self.place: Path | None = None
        self.tasks = 0


_received = _Received()


def version(sent: Mapping[str, bytes]) -> str:
    """What tells the code of one folder from that of another."""
    import xxhash

    from pipeline.digest import identity

    return identity({path: xxhash.xxh3_128_hexdigest(content) for path, content in sent.items()})


def receivable(code: str) -> None:
    """Raises StageError: tasks that have other code are at work in this process."""
    if _received.tasks and code != _received.code:
        from pipeline.errors import StageError

        raise StageError(
            f"another run, with other code of its own (--config-dir), has {_received.tasks} tasks at work on these "
            "workers, which take the code of one folder at a time; start this run when that one has ended"
        )


def receive(sent: Mapping[str, bytes]) -> None:
    """Make `sent`, which `files` gave elsewhere, the user's folder here; what was before goes, with its modules.

    Modules are a process's, so the workers of a cluster have the code of one folder at a time: that of the run which
    connected last. The files lie in a folder that only this process's user can open, as long as they are in use.

    Args:
        sent: path below the folder → content; nothing: there is no folder.

    Raises:
        ConfigError: a path that is not below one of `PACKAGES`.
        StageError: tasks that have other code are at work in this process.
    """
    parts = {path: PurePosixPath(path).parts for path in sent}
    if wrong := [path for path, p in parts.items() if len(p) < 2 or p[0] not in PACKAGES or ".." in p]:
        from pipeline.errors import ConfigError

        allowed = " or ".join(f"{package}/" for package in PACKAGES)
        raise ConfigError(f"code sent to this worker: {wrong}: a path is below {allowed}, without '..'")
    code = version(sent)
    with _received.lock:
        if code == _received.code and folder() == _received.place:
            return
        receivable(code)
        place = _written(sent) if sent else None
        if (before := folder()) is not None:
            _forget(before)
        if _received.place is not None:
            import shutil

            shutil.rmtree(_received.place, ignore_errors=True)
        os.environ.pop(VARIABLE, None)
        if place is not None:
            use(place)
        _received.code, _received.place = code, place


def _written(sent: Mapping[str, bytes]) -> Path:
    """A new folder with these files, which goes with this process."""
    import shutil
    import tempfile

    place = Path(tempfile.mkdtemp(prefix="weightmill-")).absolute()
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    for path, content in sent.items():
        file = place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return place


@contextmanager
def holding(code: str | None) -> Iterator[None]:
    """In the body this process has the code of that version, and receives no other.

    Args:
        code: None: what it has was never sent, and does not change.

    Raises:
        StageError: it has other code.
    """
    if code is None:
        yield
        return
    with _received.lock:
        if code != _received.code:
            from pipeline.errors import StageError

            raise StageError(
                "another run, with other code of its own (--config-dir), uses these workers, which take the code of "
                "one folder at a time; start this run again when that one has ended"
            )
        _received.tasks += 1
    try:
        yield
    finally:
        with _received.lock:
            _received.tasks -= 1


def _forget(guest: Path) -> None:
    """Unload the modules that came from `guest`, and look there no more."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in PACKAGES:
            continue
        file = getattr(module, "__file__", None)
        theirs = file is not None and Path(file).is_relative_to(guest)
        if not theirs and hasattr(module, "__path__"):
            module.__path__ = [p for p in module.__path__ if not Path(p).is_relative_to(guest)]
            theirs = not module.__path__  # a folder without __init__.py, which was only there
        if theirs:
            del sys.modules[name]
            parent, _, child = name.rpartition(".")
            # `from plugins.quant import foo` looks at the package first, and only then for a module.
            if getattr(sys.modules.get(parent), child, None) is module:
                delattr(sys.modules[parent], child)
    importlib.invalidate_caches()

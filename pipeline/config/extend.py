"""A user's own folder beside ours: with `--config-dir DIR`, DIR mirrors the house.

Hydra finds DIR/stages/NAME.yaml; DIR/stages/NAME.py is importable as `stages.NAME`, and DIR/plugins/quant/foo.py as
`plugins.quant.foo`. Each of our packages that takes guests says so in its `__init__`:

    __path__ = extended(__name__, __path__)

The folder travels in the environment, so that worker processes find the same modules; to workers that somebody else
started (`dask.address`) its files are sent. Our own modules win over the user's, and DIR's folders need no
`__init__.py`.
"""

import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import xxhash

from pipeline.digest import identity

VARIABLE = "WEIGHTMILL_CONFIG_DIR"
PACKAGES = ("stages", "plugins")
ROOT = Path(__file__).parents[2]

# An editable install serves our packages by a finder that comes after `sys.path`. Started in the user's folder, Python
# would then take its `stages` for the whole of ours; on the path, ours is the real package and wins.
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))


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


def files() -> dict[str, bytes]:
    """The user's code, for machines that do not have the folder: path below it → content."""
    guest = folder()
    found = (p for root in roots() for p in sorted(root.rglob("*")) if p.is_file() and "__pycache__" not in p.parts)
    return {p.relative_to(guest).as_posix(): p.read_bytes() for p in found} if guest else {}


def receive(sent: Mapping[str, bytes]) -> None:
    """Make `sent`, which `files` gave elsewhere, the user's folder here; what was before goes, with its modules.

    Modules are a process's, so the workers of a cluster have the code of one folder at a time: that of the run which
    connected last.
    """
    known = identity({path: xxhash.xxh3_128_hexdigest(content) for path, content in sent.items()})
    place = Path(tempfile.gettempdir()) / f"weightmill-{os.getuid()}" / known
    if not place.exists():
        place.parent.mkdir(mode=0o700, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=place.parent))
        for path, content in sent.items():
            file = partial / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        try:
            partial.rename(place)
        except OSError:  # another process of this machine was quicker
            shutil.rmtree(partial)
    before = folder()
    if before is not None and before != place:
        _forget(before)
    use(place)


def _forget(guest: Path) -> None:
    """Unload the modules that came from `guest`, and look there no more."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in PACKAGES:
            continue
        file = getattr(module, "__file__", None)
        if file is not None and Path(file).is_relative_to(guest):
            del sys.modules[name]
        elif hasattr(module, "__path__"):
            module.__path__ = [p for p in module.__path__ if not Path(p).is_relative_to(guest)]
    importlib.invalidate_caches()

"""Where a page goes, and what becomes of the one in the folder of a run that begins again."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.errors import ConfigError, StorageError
from pipeline.files import placed
from pipeline.records.sweeps import SWEEP

NAME = "report.html"
ENDINGS = (".html", ".htm")
GENERATOR = '<meta name="generator" content="Weightmill">'
FIRST = 4096  # bytes of a page in which that stands


def place_of(given: str | Path) -> Path:
    """The file that somebody means: a name with an ending of HTML, or a folder, for a page in it.

    Raises:
        ConfigError: it is neither.
        StorageError: a folder has the name of a page.
    """
    text = os.fspath(given)
    path = placed(text)
    if path.suffix.lower() in ENDINGS:
        if path.is_dir():
            raise StorageError(f"{path}: is a folder; the page's own name is expected, as {path / NAME}")
        return path
    if path.is_dir() or text.endswith(os.sep):
        return path / NAME
    why = f"{path.suffix} is no ending of a page" if path.suffix else "there is no such folder"
    near = path.with_suffix(".html").name
    raise ConfigError(f"{text}: {why}; a name that ends in {' or '.join(ENDINGS)} ({near}), or a folder, is allowed")


def usual(outputs: Path, words: Sequence[str], folders: Sequence[Path], name: str = NAME) -> Path:
    """Where a page goes that nobody has named a place for: of one run into its folder, of a sweep into the sweep's, of
    others beside them.

    Args:
        words: what was typed.
        folders: of the runs.

    Raises:
        StorageError: something else is there.
    """
    sweeps = [f for word in words[:1] for f in (Path(word).absolute(), outputs / word) if (f / SWEEP).is_file()]
    page = (folders[0] if len(folders) == 1 else sweeps[0] if sweeps and len(words) == 1 else outputs) / name
    if os.path.lexists(page) and not _ours(page):
        raise StorageError(f"{page}: is there, and no page of ours; --out FILE.html says where this one goes")
    return page


def _ours(page: Path) -> bool:
    try:
        with page.open("rb") as file:
            return GENERATOR.encode() in file.read(FIRST)
    except OSError:
        return False


def forgotten(folder: Path) -> None:
    """Take away the page of what stood in the folder of a run before; a page that is not ours stays."""
    page = folder / NAME
    if _ours(page) and not page.is_symlink():
        with suppress(OSError):
            page.unlink()

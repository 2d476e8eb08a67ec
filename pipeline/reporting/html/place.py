"""Where a page goes, and what becomes of the one in the folder of a run that begins again."""

import os
from contextlib import suppress
from pathlib import Path

from pipeline.errors import ConfigError, StorageError
from pipeline.files import placed

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


def forgotten(folder: Path) -> None:
    """Take away the page of what stood in the folder of a run before; a page that is not ours stays."""
    page = folder / NAME
    with suppress(OSError):
        with page.open("rb") as file:
            ours = GENERATOR.encode() in file.read(FIRST)
        if ours and not page.is_symlink():
            page.unlink()

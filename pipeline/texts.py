"""Text files that a config names: checked while the config is read, and read as UTF-8."""

import gzip
import io
import os
from pathlib import Path

from pipeline.digest import InputFile, small_input
from pipeline.errors import ConfigError, SourceError
from pipeline.files import read_whole, spoken
from pipeline.nearby import nearby

MAX_NBYTES = 1 << 30


def check(name: str, where: str) -> None:
    """Raises ConfigError when there is no such file, or nothing in it; `where` is the config key."""
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        raise ConfigError(f"{where}: {name}: a folder; a text file is expected")
    if not os.path.isfile(path):
        near = nearby(Path(path).absolute(), Path.is_file)
        raise ConfigError(f"{where}: {spoken(name)}: no such file{near}")
    if not os.path.getsize(path):
        raise ConfigError(f"{where}: {name}: an empty file, nothing to predict")


def input_file(name: str) -> InputFile:
    """Raises SourceError when it cannot be read."""
    return small_input(Path(os.path.expanduser(name)).absolute())


def read(name: str) -> str:
    """The whole text; of NAME.gz what was compressed.

    Raises:
        SourceError: it is gone, no regular file, too large, or not UTF-8.
    """
    path = Path(os.path.expanduser(name))
    try:
        if path.suffix == ".gz":
            with gzip.open(io.BytesIO(read_whole(path, MAX_NBYTES))) as file:
                return file.read(MAX_NBYTES).decode()
        return read_whole(path, MAX_NBYTES).decode()
    except UnicodeDecodeError as why:
        raise SourceError(f"{path}: byte {why.start} is not UTF-8") from None

"""Text files that a config names: checked while the config is read, and read as UTF-8."""

import os
from pathlib import Path

from pipeline.digest import InputFile, small_input
from pipeline.errors import ConfigError, SourceError, did_you_mean
from pipeline.files import read_whole, spoken

MAX_NBYTES = 1 << 30


def check(name: str, where: str) -> None:
    """Raises ConfigError when there is no such file; `where` is the config key."""
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        raise ConfigError(f"{where}: {name}: a folder; a text file is expected")
    if not os.path.isfile(path):
        folder = os.path.dirname(path) or "."
        near = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        raise ConfigError(f"{where}: {spoken(name)}: no such file{did_you_mean(os.path.basename(path), near)}")


def input_file(name: str) -> InputFile:
    """Raises SourceError when it cannot be read."""
    return small_input(Path(os.path.expanduser(name)).absolute())


def read(name: str) -> str:
    """The whole text.

    Raises:
        SourceError: it is gone, no regular file, too large, or not UTF-8.
    """
    path = Path(os.path.expanduser(name))
    try:
        return read_whole(path, MAX_NBYTES).decode()
    except UnicodeDecodeError as why:
        raise SourceError(f"{path}: byte {why.start} is not UTF-8") from None

"""Text files that a config names: checked while the config is read, and read as UTF-8."""

import codecs
import gzip
import io
import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from pipeline.digest import InputFile, small_input
from pipeline.errors import ConfigError, SourceError
from pipeline.files import read_whole, spoken
from pipeline.nearby import nearby

MAX_NBYTES = 1 << 30
BROKEN = (gzip.BadGzipFile, EOFError, zlib.error)
BEGINNING = 1 << 20  # bytes that are looked at while the config is read


def check(name: str, where: str) -> None:
    """Raises ConfigError when there is no such file, nothing in it, or no UTF-8; `where` is the config key."""
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        raise ConfigError(f"{where}: {name}: a folder; a text file is expected")
    if not os.path.isfile(path):
        near = nearby(Path(path).absolute(), Path.is_file)
        raise ConfigError(f"{where}: {spoken(name)}: no such file{near}")
    if not os.path.getsize(path):
        raise ConfigError(f"{where}: {name}: an empty file, nothing to predict")
    with suppress(OSError), open(path, "rb") as file:  # whoever reads all of it says what is wrong with it
        try:
            codecs.getincrementaldecoder("utf-8")().decode(_beginning(file, Path(path).suffix))
        except UnicodeDecodeError as why:
            raise ConfigError(f"{where}: {name}: byte {why.start} is not UTF-8; a text file is expected") from None
        except BROKEN as why:
            raise ConfigError(f"{where}: {name}: is not compressed by gzip, or broken: {why}") from None


def input_file(name: str) -> InputFile:
    """Raises SourceError when it cannot be read."""
    return small_input(Path(os.path.expanduser(name)).absolute())


def read(name: str) -> str:
    """The whole text; of NAME.gz what was compressed.

    Raises:
        SourceError: it is gone, no regular file, too large, broken, or not UTF-8.
    """
    path = Path(os.path.expanduser(name))
    content = read_whole(path, MAX_NBYTES)
    try:
        if path.suffix == ".gz":
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(MAX_NBYTES)
        return content.decode()
    except UnicodeDecodeError as why:
        raise SourceError(f"{path}: byte {why.start} is not UTF-8") from None
    except BROKEN as why:
        raise SourceError(f"{path}: is not compressed by gzip, or broken: {why}") from None


def _beginning(file: BinaryIO, suffix: str) -> bytes:
    """What is looked at of a file; of what was compressed, by its suffix, the text."""
    if suffix != ".gz":
        return file.read(BEGINNING)
    with gzip.open(file) as compressed:
        return compressed.read(BEGINNING)

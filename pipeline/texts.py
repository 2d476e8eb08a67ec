"""Text files that a config names: checked while the config is read, and read as UTF-8."""

from pathlib import Path

from pipeline.digest import small_input
from pipeline.errors import ConfigError, SourceError, did_you_mean
from pipeline.stage import InputFile


def check(name: str, where: str) -> None:
    """Raises ConfigError when there is no such file; `where` is the config key."""
    path = Path(name).expanduser()
    if path.is_dir():
        raise ConfigError(f"{where}: {name}: a folder; a text file is expected")
    if not path.is_file():
        near = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        raise ConfigError(f"{where}: {name}: no such file{did_you_mean(path.name, near)}")


def input_file(name: str) -> InputFile:
    """Raises SourceError when it cannot be read."""
    return small_input(Path(name).expanduser().absolute())


def read(name: str) -> str:
    """The whole text.

    Raises:
        SourceError: it is gone, or not UTF-8.
    """
    path = Path(name).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as why:
        raise SourceError(f"{path}: byte {why.start} is not UTF-8") from None
    except OSError as why:
        raise SourceError(f"{path}: {why.strerror}") from None

"""A user's folder with modules of its own, for as long as a test needs it."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.config import extend


@contextmanager
def guest(folder: Path, modules: Mapping[str, str]) -> Iterator[Path]:
    """`folder` as what `--config-dir` names, with `modules`: dotted name → source."""
    for name, text in modules.items():
        path = folder.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    packages = {n: m for n, m in sys.modules.items() if n.partition(".")[0] in extend.PACKAGES}
    before = {n: list(m.__path__) for n, m in packages.items() if hasattr(m, "__path__")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(extend.VARIABLE, str(folder))
        extend.use(folder)
        yield folder
    for name, path in before.items():
        packages[name].__path__ = path

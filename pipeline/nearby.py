"""What is said of a path where nothing is: from where on it leads nowhere, and what is called nearly so."""

import os
from collections.abc import Callable
from pathlib import Path

from pipeline.errors import nearest
from pipeline.files import spoken


def nearby(path: Path, fits: Callable[[Path], bool]) -> str:
    """The tail of a message about `path`, where nothing is.

    Args:
        path: absolute.
        fits: whether something beside it could be meant. Only what is called nearly so is asked.
    """
    missing = path
    while not missing.parent.exists():
        missing = missing.parent
    text = f"; there is no folder {spoken(missing)}" if missing != path else f" in {spoken(path.parent)}"
    try:
        close = nearest(missing.name, sorted(n for n in os.listdir(missing.parent) if n[:1] != "."), most=9)
    except OSError:  # somebody else's
        return text
    fits = fits if missing == path else Path.is_dir
    close = [repr(name) for name in close if fits(missing.parent / name)][:3]
    return f"{text}; did you mean {' or '.join(close)}?" if close else text

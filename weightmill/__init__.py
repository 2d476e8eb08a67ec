"""Weightmill by a name of its own: `import weightmill`, `python -m weightmill`, the command `weightmill`.

`pipeline`, `stages` and `plugins` are names that other people's folders have as well. Whoever comes through this one
gets ours in a folder that has its own: they are taken from where this file lies, whatever Python looks through first.
`pipeline.config.extend` then sees to it that this stays so.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def _ours() -> None:
    """Import `pipeline` from beside this package.

    Raises:
        ImportError: another package of that name, or of the other ones, is there already.
    """
    for name in ("pipeline", "stages", "plugins"):
        there = getattr(sys.modules.get(name), "__file__", None)
        if name in sys.modules and (there is None or Path(there).resolve().parents[1] != _ROOT):
            raise ImportError(
                f"weightmill: a package {name!r} was imported before, from {there or 'a folder without __init__.py'}, "
                f"and Weightmill has one of that name in {_ROOT}: import weightmill first, or in another process"
            )
    if "pipeline" not in sys.modules:
        folder = _ROOT / "pipeline"
        found = spec_from_file_location("pipeline", folder / "__init__.py", submodule_search_locations=[str(folder)])
        assert found is not None
        assert found.loader is not None
        sys.modules["pipeline"] = module_from_spec(found)
        found.loader.exec_module(sys.modules["pipeline"])


_ours()

from pipeline import *  # noqa: E402, F403  what is public there

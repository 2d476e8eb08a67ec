"""`reproduce RUN`: run it again elsewhere, and say what is the same and what is not."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pipeline.commands.arguments import Arguments, outputs_of
from pipeline.errors import ConfigError, some

FOLDER = "reproduced"  # in that of all runs


def main(words: Sequence[str]) -> int:
    """0: all is the same; 7: it is not.

    Raises:
        ConfigError: no run, or several.
        WeightmillError: as `pipeline.running.reproduce.reproduced`.
    """
    outputs, rest = outputs_of(words)
    options = Arguments("reproduce")
    options.add_argument("--out")
    options.add_argument("--config-dir", "-cd")
    options.add_argument("words", nargs="*")
    given = options.read(rest)
    if len(given.words) != 1:
        said = f" {' '.join(given.words)}" if given.words else ""
        raise ConfigError(f"reproduce{said}: which run? One, by its folder or name: reproduce RUN [--out DIR]")
    from pipeline.records.registry import find
    from pipeline.records.run import is_run, read
    from pipeline.reporting import console
    from pipeline.reporting.progress import progress
    from pipeline.running.reproduce import before, reproduced

    [word] = given.words
    there = [place for place in (Path(word).expanduser().absolute(), outputs / word) if is_run(place)]
    runs = [read(there[0])] if there else find(outputs, [word])  # the name of a run may look like a condition
    if len(runs) != 1:
        names = some([run.name for run in runs])
        raise ConfigError(f"reproduce {word}: one run at a time is made again, and {len(runs)} are called so: {names}")
    was = before(runs[0])
    out = Path(given.out).expanduser().absolute() if given.out else _fresh(outputs / FOLDER, runs[0].name)
    with ExitStack() as stack:
        config_dir = _own_folder(given.config_dir, was.report.environment)
        events = stack.enter_context(progress(bool(was.tree.get("progress", True))))
        found = reproduced(was, out, events, lambda a, b, place: _verified(a, b, place, config_dir))
    console.out(*found.shown)
    return found.exit_code


def _own_folder(given: str | None, environment: Any) -> str | None:
    """Make the folder of own code the one that was typed, or that the run had.

    Raises:
        ConfigError: it is not there.
    """
    folder = given or environment.get("config_dir") or None
    if folder is None:
        return None
    if not Path(folder).is_dir():
        which = "no such folder" if given else "the run had its code there, and it is gone; --config-dir DIR says where"
        raise ConfigError(f"--config-dir {folder!r}: {which}")
    from pipeline.config.extend import use

    use(folder)
    return os.path.abspath(folder)


def _fresh(folder: Path, name: str) -> Path:
    """A folder that there is not yet."""
    tries = (folder / (name if n == 1 else f"{name}-{n}") for n in range(1, 1 << 30))
    return next(place for place in tries if not place.exists())


def _verified(a: Path, b: Path, place: Path, config_dir: str | None) -> Any:
    from pipeline import api
    from pipeline.config.overrides import quoted

    typed = ["flow=verify", f"a={quoted(str(a))}", f"b={quoted(str(b))}", "digest_inputs=false"]
    typed += [f"paths.run={quoted(str(place))}", f"paths.outputs={quoted(str(place.parent))}"]
    return api.run(typed, config_dir=config_dir, progress=False)

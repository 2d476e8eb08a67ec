"""What is typed behind a verb that is about no run of its own: words and options, with our errors."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pipeline import terminal
from pipeline.errors import ConfigError, StorageError, did_you_mean
from pipeline.records.registry import Found
from pipeline.records.run import is_run
from pipeline.redact import hide

WORD = "\0"  # before what is no option, as no typed word begins


class Arguments(argparse.ArgumentParser):
    """`argparse` whose errors are ours, and in which no abbreviation is an option."""

    def __init__(self, verb: str):
        super().__init__(prog=verb, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}")

    def read(self, words: Sequence[str]) -> Any:
        """Options by name, and all other words as `words`; behind `--` all are words.

        Raises:
            ConfigError: an option that there is not, or a value that it does not take.
        """
        at = words.index("--") if "--" in words else len(words)
        plain = [f"{WORD}{word}" for word in words[at + 1 :]]  # which `argparse` takes for no option
        found, rest = self.parse_known_intermixed_args([*words[:at], *plain])
        if hasattr(found, "words"):
            found.words = [word.removeprefix(WORD) for word in found.words]
        if rest:
            known = [option for action in self._actions for option in action.option_strings]
            raise ConfigError(f"{self.prog} {rest[0]}: there is no such option{did_you_mean(rest[0], known)}")
        return found


def not_a_record(out: Path) -> None:
    """
    Raises:
        StorageError: what is to be written would replace a record of a run.
    """
    from pipeline.planning.obstacles import RECORDS

    if out.name in RECORDS and is_run(out.parent):
        raise StorageError(f"--out {out}: is a record of a run, and is not replaced; choose another name")


def say_absent(found: Found) -> None:
    """Which jobs of the sweeps that were named are not there; no table has a row for them."""
    for text in found.said:
        terminal.say(f"! {hide(terminal.line(text))}")


def outputs_of(words: Sequence[str]) -> tuple[Path, list[str]]:
    """The folder of runs, `paths.outputs=DIR` where that was typed, and the words that are left."""
    given = [word for word in words if word.startswith("paths.outputs=")]
    folder = Path(given[-1].partition("=")[2]) if given else Path("outputs")
    return folder.expanduser().absolute(), [word for word in words if word not in given]

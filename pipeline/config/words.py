"""Words as a shell hands them over: of what kind each is, and which were one before the shell took them apart."""

import re
import sys
from collections.abc import Mapping, Sequence
from os.path import exists, expanduser
from pathlib import Path

from pipeline.config.overrides import TEXTS

# Hydra's options: whether a value follows.
OPTIONS: Mapping[str, bool] = {
    "--help": False, "-h": False, "--hydra-help": False, "--version": False, "--multirun": False, "-m": False,
    "--run": False, "-r": False, "--resolve": False, "--shell-completion": False, "-sc": False, "--cfg": True,
    "-c": True, "--package": True, "-p": True, "--config-path": True, "-cp": True, "--config-name": True, "-cn": True,
    "--config-dir": True, "-cd": True, "--experimental-rerun": True, "--info": False, "-i": False,
}  # fmt: skip
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")  # what may follow `--info`
OPTION = re.compile(r"--?[A-Za-z][\w-]*")
DELETION = re.compile(r"~[A-Za-z_][\w./@-]*(=.*)?", re.DOTALL)  # and not `~/`, which is home
OVERRIDE = re.compile(rf"{DELETION.pattern}|[+]{{0,2}}(?!-)[\w./@-]*=.*", re.DOTALL)
PAIRS = {"[": "]", "{": "}", "(": ")"}


def is_option(word: str) -> bool:
    return bool(OPTION.fullmatch(word.partition("=")[0]))


def there(word: str) -> bool:
    """Whether a word is the path of something."""
    return bool(word) and exists(expanduser(word))


def before_dashes(args: Sequence[str]) -> Sequence[str]:
    """The words among which options are: those before `--`."""
    return args[: args.index("--")] if "--" in args else args


def door() -> list[str]:
    """How this program was called: by one of its doors, the printed line goes through the same: its words."""
    name = Path(sys.argv[0]).name
    module = "weightmill" if Path(sys.argv[0]).parent.name == "weightmill" else "pipeline"
    return ["weightmill"] if name == "weightmill" else ["python", "-m", module]


def together(args: Sequence[str], texts: Sequence[str] = ()) -> list[str] | None:
    """`args` with those made one again that a shell took apart for want of quotes; None where none looks like it.

    They belong together where a bracket is open, where there is a file of the whole name and none of the first part,
    and where a text goes on: words behind `prompt=hello` that are neither settings nor options.

    Args:
        texts: options whose values are texts.
    """
    rest = list(before_dashes(args))
    tail = list(args[len(rest) :])
    found: list[str] = []
    while rest:
        word = rest.pop(0)
        n = _belonging(word, rest, found[-1] if found else "", texts)
        found.append(" ".join([word, *rest[:n]]))
        del rest[:n]
    return [*found, *tail] if found != list(before_dashes(args)) else None


def _belonging(word: str, rest: Sequence[str], before: str, texts: Sequence[str]) -> int:
    """How many of the words behind `word` are the rest of it."""
    key, given, value = word.partition("=")
    is_setting = bool(given) and bool(OVERRIDE.fullmatch(word) or is_option(word))
    value = value if is_setting else word
    of_text = key.lstrip("+") in (*TEXTS, *texts) if is_setting else before in texts
    if of_text:
        strange = (i for i, other in enumerate(rest) if OVERRIDE.fullmatch(other) or is_option(other))
        return next(strange, len(rest))
    if is_setting and _open(value):
        return next((n for n in range(1, len(rest) + 1) if not _open(" ".join([value, *rest[:n]]))), 0)
    if is_option(word) or there(value):
        return 0
    return next((n for n in range(1, len(rest) + 1) if there(" ".join([value, *rest[:n]]))), 0)


def _open(text: str) -> bool:
    """Whether a bracket is not closed."""
    return any(text.count(a) > text.count(b) for a, b in PAIRS.items())

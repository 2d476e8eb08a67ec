"""Pages of 2 MiB for large pieces of memory, where the system gives them to whoever asks.

A training step works in hundreds of MB that XLA has from the system and gives back, every time: touching them page by
page takes a third of a step, and next to nothing in huge pages. glibc asks for them if its environment says so when a
process starts, and not later; so a run begins once more, as the same process, before anything is imported. (Keeping
freed memory instead, which `mallopt` can do at any time, was as quick and took up to twice as much.)

Only commands of ours do so, and not those that convert without running a model: they read into memory that they keep
(`pipeline.tensors.rooms`), and beginning twice takes 4 % of converting 1.6 GB. Whoever sets
GLIBC_TUNABLES, if only to nothing, is left alone.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

NAME: Final = "GLIBC_TUNABLES"
TUNABLE: Final = "glibc.malloc.hugetlb=1"  # ask with madvise(2); GNU libc manual, "Memory Allocation Tunables"
GIVEN: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
# Verbs, beside new-….
WITHOUT: Final = (
    "plan", "graph", "why", "explain", "gc", "tune", "help", "version", "runs", "compare", "report", "reproduce",
)  # fmt: skip
QUESTIONS: Final = (
    "--help", "-h", "--hydra-help", "--version", "--info", "-i", "--cfg", "-c", "--shell-completion", "-sc",
)  # fmt: skip
SINCE: Final = (2, 35)  # of glibc
CONVERSIONS: Final = ("convert", "flow=convert")
# Settings, and options, with any of which a conversion still runs no model.
WITHOUT_MODEL: Final = (
    "convert", "flow", "model", "quant", "export", "paths", "dask", "digest_inputs", "progress", "stages.quantize",
    "--to", "--quant", "--dtype", "--out",
)  # fmt: skip
SEARCHES: Final = "auto"  # of `quant`: it asks a model


def begin_anew(words: Sequence[str]) -> None:
    """Begin this process once more with huge pages, if it has none and may have them. Else return, as in a program that
    was started for something else.

    Args:
        words: of the command, after the program.
    """
    own = sys.orig_argv[-len(words) :] == [*words]
    if own and sys.executable and wanted(words, os.environ):
        os.environ[NAME] = TUNABLE
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  this program again


def wanted(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether these words ask for a run, and its memory could be in huge pages and is not."""
    return runs(words) and NAME not in environment and libc() >= SINCE and "[madvise]" in given()


def runs(words: Sequence[str]) -> bool:
    """Whether something is computed, as far as can be told before anything is imported."""
    if not words or words[0] in WITHOUT or words[0].startswith("new-") or {*QUESTIONS} & {*words}:
        return False
    return not converts(words)


def converts(words: Sequence[str]) -> bool:
    """Whether weights are converted, and no model is run."""
    return bool({*CONVERSIONS} & {*words}) and all(map(_of_conversions, words))


def _of_conversions(word: str) -> bool:
    """Whether a conversion with this word may still run no model; a word alone is what is converted, or an option's."""
    key, _, value = word.lstrip("+").partition("=")
    if SEARCHES in (key, value):
        return False
    return key.startswith(WITHOUT_MODEL) or not (value or key.startswith("-"))


def given() -> str:
    """When the system gives huge pages, as Linux says it: `always [madvise] never`; empty where it says nothing."""
    try:
        return GIVEN.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""


def libc() -> tuple[int, ...]:
    """Version of glibc; nothing if it is another library."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return tuple(map(int, version.split("."))) if name == "glibc" else ()
    except (OSError, ValueError, AttributeError):  # a system without it
        return ()

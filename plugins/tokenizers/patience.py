"""Calls into libraries that run what strangers wrote into a vocabulary: patterns that never end, panics of Rust.

A pattern may take time quadratic in a text, and nothing stops a library that is at it. So the call is made in a thread
of its own, while this one waits, for so long and no longer, and can be interrupted. It costs 0.1 ms. The libraries have
to let go of Python's lock meanwhile: `tokenizers` does for batches, `tiktoken` always.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pipeline.errors import SourceError

# Vocabularies take some 10⁶ characters a second, the slowest 10⁵.
PATIENCE_S, CHARS_PER_S = 60.0, 2000

T = TypeVar("T")


def patiently(where: str, chars: int, call: Callable[[], T]) -> T:
    """`call()`, of a library.

    Args:
        where: the file it has from strangers.
        chars: characters or tokens that it works on.

    Raises:
        SourceError: it takes longer than any vocabulary does, panics, or raises an error of its own.
    """
    found: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with no_panic(where):
                found.append(call())
        except BaseException as why:
            errors.append(why)

    seconds = PATIENCE_S + chars / CHARS_PER_S
    thread = threading.Thread(target=run, daemon=True, name="a stranger's pattern")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise SourceError(
            f"{where}: stopped waiting for {chars} characters after {seconds:.0f} s: one of its patterns may never end"
        )
    if not errors:
        return found[0]
    if isinstance(errors[0], SourceError) or not isinstance(errors[0], Exception):
        raise errors[0]
    raise SourceError(f"{where}: {type(errors[0]).__name__}: {errors[0]}") from None


@contextmanager
def no_panic(where: str) -> Iterator[None]:
    """Raises SourceError when Rust panics in the body: pyo3's PanicException is a BaseException, of no public name."""
    try:
        yield
    except BaseException as why:
        if type(why).__name__ != "PanicException":
            raise
        said = " ".join(str(why).split())
        raise SourceError(f"{where}: what it says breaks the library that runs it: {said}") from None


def has_pattern(found: Any) -> bool:
    """Whether a part of tokenizer.json has a regular expression anywhere."""
    if isinstance(found, dict):
        return "Regex" in found or any(map(has_pattern, found.values()))
    return isinstance(found, list) and any(map(has_pattern, found))

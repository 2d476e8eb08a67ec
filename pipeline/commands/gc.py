"""`gc`: results that no run refers to."""

from collections.abc import Sequence

from pipeline.commands.arguments import Arguments, outputs_of


def main(words: Sequence[str]) -> int:
    """List them, and with --delete remove them. The exit code.

    Raises:
        ConfigError: another word.
        StorageError: something cannot be removed.
    """
    from pipeline.reporting import console
    from pipeline.running.results import remove, unreferred

    outputs, rest = outputs_of(words)
    arguments = Arguments("gc")
    arguments.add_argument("--delete", action="store_true")
    given = arguments.read(rest)
    found = unreferred(outputs)
    for one in found if given.delete else ():
        remove(one)
    console.out(*console.gc_tables(found, deleted=given.delete))
    return 0

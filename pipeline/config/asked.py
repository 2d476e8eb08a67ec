"""Which command about runs a line is: it composes nothing, so what takes long to import is not imported for it."""

from collections.abc import Sequence

COMMANDS = ("runs", "compare", "report", "reproduce", "gc")  # about runs that there are already: `pipeline.commands`
QUESTIONS = ("-h", "--help", "--version")


def command(words: Sequence[str]) -> str | None:
    """The command that a line begins with; None: it is something else, or asks what the command is."""
    typed = words[: words.index("--")] if "--" in words else words
    return words[0] if words and words[0] in COMMANDS and not {*QUESTIONS} & {*typed} else None

"""What a chat's /help says."""

import sys
from collections.abc import Mapping

from pipeline.running.typed import GOES_ON, QUOTES
from pipeline.tables import width, wrapped
from pipeline.terminal import say

EFFORTS = ("low", "medium", "high")
COMMANDS = {
    "/system TEXT": "what the conversation begins with; /system - for nothing",
    "/set": "how tokens are chosen; /set temperature 0.7, or /temperature 0.7, changes it",
    "/reset, /clear": "forget what was said",
    "/undo": "forget the last question and its answer",
    "/retry": "answer the last question again, with the next seed",
    "/save FILE": "write the conversation as JSON",
    "/load FILE": "go on with one",
    "/stats": "speed, tokens and memory",
    "/exit, /quit": "end, as Ctrl-D does",
}
IN_CHANNELS = {"/effort LEVEL": f"how long it thinks: {', '.join(EFFORTS)}", "/thinking on|off": "show it"}
HOW = (
    f"A text of several lines begins and ends with {QUOTES}, or has {GOES_ON} at the end of each but the last. One "
    "that begins with / is typed after a space. Ctrl-C ends an answer, or takes back what is typed."
)
WIDE, LEAST = 80, 30  # columns where nobody knows how many there are, and of what stands beside a name


def folded(text: str, indent: str = "") -> str:
    """A text in lines that fit the screen."""
    return "\n".join(wrapped(text, width(sys.stderr) or WIDE, indent))


def listed(told: Mapping[str, str]) -> None:
    """Say names, and what is said of each beside it, or on a narrow screen below."""
    columns = width(sys.stderr) or WIDE
    room = max(map(len, told)) + 2
    longest = max(map(len, told.values()))
    for name, text in told.items():
        if room + min(LEAST, longest) > columns:
            say("\n".join([name, *wrapped(f"  {text}", columns, "  ")]))
        else:
            say("\n".join(wrapped(f"{name:{room}}{text}", columns, " " * room)))

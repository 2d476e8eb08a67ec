"""Being told to stop: Ctrl-C, a terminal that closes, a supervisor that terminates.

The first signal unwinds like Ctrl-C, so that workers are let go of and journals closed; a second one ends at once, and
takes the worker processes along.
"""

import contextlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from pipeline.terminal import say

SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
GOES_ON = "the same command goes on from here"
_seen: list[int] = []  # signals that arrived, in order
_then = GOES_ON


class Stopped(KeyboardInterrupt):
    """A signal of `SIGNALS`; a KeyboardInterrupt, which libraries let pass."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def listen(then: str = GOES_ON) -> None:
    """Take the signals that this process was not started to ignore (`nohup`, a shell's background jobs).

    Args:
        then: what `end` says of the work.
    """
    global _then
    _then = then
    for signum in SIGNALS:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _take)


def _take(signum: int, frame: FrameType | None) -> None:
    _seen.append(signum)
    if len(_seen) > 1:
        end(_seen[0])
    raise Stopped(signum)


def end(signum: int) -> NoReturn:
    """Say so and exit, now: `sys.exit` would wait for threads, and so for a model to finish scoring or its text."""
    for other in SIGNALS:  # one that came while psutil is half imported would begin this again, and fail
        signal.signal(other, signal.SIG_IGN)
    import psutil  # type: ignore[import-untyped]  # not above: most commands do without, and would start later

    # Not multiprocessing's active_children, which does not know one that is only just being started; it would complain.
    resources = sys.modules.get("multiprocessing.resource_tracker")  # who started a tracker has imported it
    tracker = resources and resources._resource_tracker._pid  # it ends by itself, and cleans up
    for process in psutil.Process().children(recursive=True):
        if process.pid != tracker:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    with contextlib.suppress(RuntimeError):  # the signal came in the middle of a write
        say(f"{SIGNALS[signal.Signals(signum)]}; {_then}")
        sys.stdout.flush()
    os._exit(128 + signum)

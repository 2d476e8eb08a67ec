"""A command as a process: streams and signals as they should be, errors as people read them, an exit code."""

import gc
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

from pipeline import terminal
from pipeline.config import asked
from pipeline.errors import WeightmillError
from pipeline.reporting import console
from pipeline.running import stopping


def commanded(words: Sequence[str]) -> None:
    """Do what `words` ask for, and end, if that is a command about runs; what composes configs is not imported."""
    if (verb := asked.command(words)) is not None:
        end(lambda: int(import_module(f"pipeline.commands.{verb}").main([*words[1:]])))


def end(
    work: Callable[[], int], then: str = stopping.GOES_ON, *, debug: Callable[[], bool] = lambda: False
) -> NoReturn:
    """Do `work`, whose exit code the process has.

    Args:
        then: what is said of it when it is stopped.
        debug: whether errors of ours have a traceback, asked when there is one.
    """
    gc.disable()
    terminal.protect()
    stopping.listen(then)
    try:
        code = work()
    except KeyboardInterrupt as why:
        stopping.end(getattr(why, "signum", signal.SIGINT))
    except Exception as why:
        if debug() or not isinstance(why, WeightmillError):
            terminal.say(traceback.format_exc().rstrip())
        else:
            console.error(why)
        code = getattr(why, "exit_code", 1)
    except SystemExit as why:  # Hydra's
        code = why.code if isinstance(why.code, int) else int(why.code is not None)
    collect_garbage()  # and not of what was there, which the interpreter would look through once more
    sys.exit(terminal.finish(code))


def collect_garbage() -> None:
    """Look for garbage as always, but not among what is there now."""
    gc.freeze()
    gc.enable()

"""A program that renders chat templates, in a process of its own: templates are programs by strangers.

What such a program may see and call is a matter of jinja2's sandbox. How long it runs and what it takes is not: one
expression (`10 ** 10 ** 10`, a list of itself compared with its like) can keep the interpreter busy for ever without
ever coming back to it. So the system bounds it: seconds of CPU, and bytes beyond what the process takes anyway.

`chat_process.py` starts it and talks to it. It imports nothing of the project, so that it starts as quickly as Python.

A request is a line of JSON: `template`, `variables`, and the bounds `seconds`, `nbytes`, `chars`. The answer is a line
too: `text`, or `refused` (what `raise_exception` said), or `error` with `kind` and `line`, or `beyond`, the bound.
"""

import json
import math
import resource
import signal
import sys
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from traceback import walk_tb
from typing import Any, NoReturn

LONGEST = 1000  # characters of an error


class Refused(Exception):
    """What `raise_exception` raises in a template."""


def serve() -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal's processes; whoever asked ends us
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        request = json.loads(line)
        before = resource.getrlimit(resource.RLIMIT_AS)
        _limit(resource.RLIMIT_AS, _address_space() + request["nbytes"])
        try:
            said = answer(request)
        except MemoryError:
            said = {"beyond": "nbytes"}
        resource.setrlimit(resource.RLIMIT_AS, before)
        print(json.dumps(said), flush=True)


def _limit(what: int, wanted: int) -> None:
    """Allow `wanted` of it, or what this process may have at all, if that is less."""
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Render; killed by the system when it takes more than `seconds`.

    Raises:
        MemoryError: the bound on memory is reached.
    """
    import jinja2

    used = resource.getrusage(resource.RUSAGE_SELF)
    last = math.ceil(used.ru_utime + used.ru_stime + request["seconds"])
    _limit(resource.RLIMIT_CPU, last)
    try:
        parts, chars = [], 0
        for part in _compiled(request["template"]).generate(request["variables"]):
            parts.append(part)
            chars += len(part)
            if chars > request["chars"]:
                return {"beyond": "chars"}
        return {"text": "".join(parts)}
    except MemoryError:
        raise
    except Refused as why:
        return {"refused": str(why)[:LONGEST]}
    except jinja2.TemplateSyntaxError as why:
        return {"error": str(why.message), "kind": "", "line": why.lineno}
    except Exception as why:  # a template can raise whatever Python can
        lines = [line for frame, line in walk_tb(why.__traceback__) if frame.f_code.co_filename == "<template>"]
        return {"error": str(why)[:LONGEST], "kind": type(why).__name__, "line": lines[-1] if lines else None}


def _address_space() -> int:
    """Bytes of it that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@lru_cache(maxsize=16)
def _compiled(text: str) -> Any:
    """The template, ready to run, with what transformers offers it (utils/chat_template_utils.py)."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what the assistant wrote, for training; here the mark means nothing."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> list[nodes.Node]:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return [nodes.Scope(body, lineno=line)]

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _strftime_now}
    return environment.from_string(text)


def _refuse(message: str) -> NoReturn:
    raise Refused(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


if __name__ == "__main__":
    serve()

"""JSON that comes from outside: nothing in it that two readers could understand differently, or that breaks one."""

import json
import math
import re
from pathlib import Path
from typing import Any

from pipeline.errors import SourceError
from pipeline.files import MAX_NBYTES, read_whole, spoken

MAX_DEPTH = 64
MAX_DIGITS = 40  # 10^30 says "no limit" in tokenizer_config.json; int() of thousands is slow, then an error
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_object(path: Path, most: int = MAX_NBYTES) -> dict[str, Any]:
    """The JSON object in a file of at most `most` bytes.

    Raises:
        SourceError: as `read_whole` and `parse_object`.
    """
    return parse_object(read_whole(path, most), spoken(path))


def parse_object(raw: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `raw`, UTF-8.

    Raises:
        SourceError: as `parse`; it is something else.
    """
    value = parse(raw, where)
    if not isinstance(value, dict):
        raise SourceError(f"{where}: expected a JSON object, got {type(value).__name__}")
    return value


def parse(raw: bytes, where: str) -> Any:
    """Whatever JSON there is in `raw`, UTF-8.

    Refuses what Python's parser lets pass: duplicate keys at any level, NaN and Infinity (spelled so, or 1e999),
    negative zero as an integer, lone surrogates, nesting deeper than `MAX_DEPTH` and integers longer than `MAX_DIGITS`.

    Raises:
        SourceError: `where`, then what is wrong and at which byte where that is known.
    """
    try:
        text = raw.decode("utf-8")
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_integer, parse_float=_float
        )
        if _SURROGATE.search(text):  # an escaped lone surrogate passes the parser and then breaks every encoder
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as e:
        raise SourceError(f"{where}: not UTF-8 at byte {e.start}: {e.reason}") from e
    except UnicodeEncodeError as e:
        raise SourceError(f"{where}: a string holds a lone surrogate {e.object[e.start]!r}") from e
    except RecursionError as e:
        raise SourceError(f"{where}: nested too deeply to be JSON of this format") from e
    except json.JSONDecodeError as e:
        raise SourceError(f"{where}: not JSON at character {e.pos}: {e.msg}") from e
    except ValueError as e:
        raise SourceError(f"{where}: {e}") from e
    if text.count("[") + text.count("{") > MAX_DEPTH and _deeper([value], MAX_DEPTH + 1):
        raise SourceError(f"{where}: nested too deeply: at most {MAX_DEPTH} levels are read")
    return value


def _deeper(value: Any, most: int) -> bool:
    """Whether `value` has more than `most` levels; what goes through it afterwards may recurse."""
    level = [value]
    for _ in range(most):
        level = [v for c in level for v in (c.values() if isinstance(c, dict) else c) if isinstance(v, dict | list)]
    return bool(level)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        key = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise ValueError(f"duplicate key {key!r:.200}")
    return out


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _integer(text: str) -> int:
    if text == "-0" or len(text) > MAX_DIGITS:
        raise ValueError(f"integer {text[:24]!r} is out of range")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"number {text[:24]!r} is out of range")
    return value

"""JSON as file headers must have it: nothing that two readers could understand differently."""

import json
from typing import Any

from pipeline.errors import SourceError


def parse_object(raw: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `raw`, UTF-8.

    Refuses what Python's parser lets pass: duplicate keys at any level, NaN and Infinity, negative zero as an integer,
    lone surrogates, and nesting or numbers deep or long enough to break the parser.

    Raises:
        SourceError: `where`, then what is wrong and at which byte where that is known.
    """
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_integer)
        if "\\u" in text:  # an escaped lone surrogate passes the parser and then breaks every encoder
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
    if not isinstance(value, dict):
        raise SourceError(f"{where}: expected a JSON object, got {type(value).__name__}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        key = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise ValueError(f"duplicate key {key!r}")
    return out


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _integer(text: str) -> int:
    if text == "-0" or len(text) > 20:  # 2^64 has 20 digits; int() of thousands of digits is slow, then an error
        raise ValueError(f"integer {text[:24]!r} is out of range")
    return int(text)

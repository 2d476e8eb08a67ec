"""What records and messages must not say: credentials in addresses, and what was taken from the environment.

`${oc.env:NAME}` keeps its name wherever it came into the config; its value is replaced by that name in any other text.
A digest of what is left out tells two values apart, and is slow to try guesses against.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from hashlib import pbkdf2_hmac
from pathlib import Path
from typing import Any

HIDDEN = "***"
SHORTEST = 6  # characters of a value that is looked for in any text: shorter ones are found where they mean nothing
ROUNDS = 200_000  # of SHA-256: about 50 ms a guess
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")  # what huggingface_hub reads by itself

_USER = re.compile(r"(\w[\w+.-]*://)([^/\s?#]*)@")
# Where a name alone before the @ can be a token; `near://x@1` of a plugin's remote is a revision.
_SERVERS = ("http://", "https://", "tcp://", "tls://", "ws://", "wss://")
_QUERY = re.compile(r"(?<=://)([^\s'\"<>?#]*)([?#][^\s'\"<>]*)")
_PARAMETER = re.compile(r"(?<=[?#&;])([^=?#&;]*=)?([^?#&;]+)")
_REFERENCE = re.compile(r"\$\{[^{}]*\}")

_values: dict[str, str] = {}  # → what stands in their place


def learn(values: Mapping[str, str], places: Iterable[str] = ()) -> None:
    """Leave `values` (by the name of their variable) out of every text from now on.

    A value that is or names a place on this machine, or is part of one of `places`, is no secret: people go there.
    """
    places = tuple(places)
    tokens = {name: os.environ[name] for name in TOKENS if name in os.environ}
    for name, value in {**tokens, **values}.items():
        plain = len(value) < SHORTEST or re.fullmatch(r"[-+.\d]*", value)
        if not plain and not _is_place(value) and not any(value in place for place in places):
            quoted = (repr(value), json.dumps(value), json.dumps(value, ensure_ascii=False))
            _values.update(dict.fromkeys((value, *(q[1:-1] for q in quoted)), f"${{oc.env:{name}}}"))


def _is_place(value: str) -> bool:
    """Whether it is a path: of something there is, or below a folder other than the root."""
    path = Path(os.path.expanduser(value))
    try:
        return path.exists() or (path.is_absolute() and Path(*path.parts[:2]).is_dir())
    except (OSError, ValueError):
        return False


def hide(text: str) -> str:
    """`text` without credentials in its addresses, and without values that were learned."""
    for value in sorted(_values, key=len, reverse=True):
        text = text.replace(value, _values[value])
    return without_credentials(text)


def without_credentials(text: str) -> str:
    """`text` without names, passwords and parameters in its addresses."""
    if "://" not in text:
        return text
    text = _USER.sub(_hide_user, text)
    return _QUERY.sub(lambda m: m[1] + _PARAMETER.sub(_hide_value, m[2]), text)


def _hide_user(match: re.Match[str]) -> str:
    a_login = ":" in match[2] or match[1].endswith(_SERVERS)
    return f"{match[1]}{HIDDEN}@" if a_login and not _only_references(match[2]) else match[0]


def _hide_value(match: re.Match[str]) -> str:
    return match[0] if _only_references(match[2]) else (match[1] or "") + HIDDEN


def _only_references(text: str) -> bool:
    return not _REFERENCE.sub("", text).strip(":")


def tree(value: Any, how: Callable[[str], str] = hide) -> Any:
    """JSON-able `value` with every text in it hidden; keys stay."""
    if isinstance(value, str):
        return how(value)
    if isinstance(value, Mapping):
        return {k: tree(v, how) for k, v in value.items()}
    return [tree(v, how) for v in value] if isinstance(value, list | tuple) else value


def identified(given: Any, value: Any) -> Any:
    """`given`, what a config says by name, with the digest of what it stands for wherever `value` says more.

    So that configs are equal exactly when their values are, and the clear value is not in them.
    """
    if isinstance(given, Mapping) and isinstance(value, Mapping) and given.keys() == value.keys():
        return {k: value[k] if k == "_target_" else identified(given[k], value[k]) for k in given}
    if isinstance(given, list) and isinstance(value, list) and len(given) == len(value):
        return [identified(g, v) for g, v in zip(given, value, strict=True)]
    if given == value and type(given) is type(value):
        return value
    return {"given": given, "digest": _digest(json.dumps(value, sort_keys=True, default=str))}


@cache
def _digest(text: str) -> str:
    return pbkdf2_hmac("sha256", text.encode("utf-8", "surrogatepass"), b"weightmill", ROUNDS, 16).hex()

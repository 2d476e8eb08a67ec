"""Changes to JSON values, texts and bytes that parsers stumble over."""

import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

NUMBERS = (
    0, 1, -1, 2, 3, 7, 255, 256, 65535, 65536, 10**6, 10**9, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62,
    2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -(2**31), -(2**63), 0.0, -0.0, 0.5, 1e-30, 1e30, 1e308, -1.5,
)  # fmt: skip
TEXTS = (
    "", " ", "x", "\0", "\x1b[31m", "..", "/", "../../etc/passwd", "\u202e", "\ud800", "é", "▁", "a" * 300, "9" * 5000,
    "%s", "{}", "None", "true", "1", "-1", "inf", "nan", "re:(", "re:.*", "default", "yarn", "llama3", "linear",
)  # fmt: skip


def one(rng: random.Random, items: Sequence[Any]) -> Any:
    return items[rng.randrange(len(items))]


def value(rng: random.Random, seen: Sequence[Any] = ()) -> Any:
    """Any JSON value; `seen` are some that are in place somewhere else."""
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: one(rng, NUMBERS),
        lambda: one(rng, NUMBERS),
        lambda: one(rng, TEXTS),
        lambda: one(rng, (None, True, False)),
        lambda: one(rng, ([], {}, [[]], [None], {"": None}, [1, "x"], {"content": 5}, ["x"], [0] * 40)),
        lambda: one(rng, seen) if seen else None,
        lambda: deep(rng.choice([10, 70, 2000])),
    )
    return one(rng, kinds)()


def deep(levels: int) -> Any:
    found: Any = 1
    for i in range(levels):
        found = [found] if i % 2 else {"a": found}
    return found


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a JSON value."""
    found = [path]
    if len(path) > 12:
        return found
    if isinstance(tree, dict):
        for key, inner in tree.items():
            found += places(inner, (*path, key))
    elif isinstance(tree, list):
        for i, inner in enumerate(tree[:20]):
            found += places(inner, (*path, i))
    return found


def change(rng: random.Random, tree: Any) -> Any:
    """A copy of a JSON value with one thing in it changed."""
    if not isinstance(tree, dict | list) or not tree:
        return value(rng)
    paths = places(tree)
    path = one(rng, paths[1:] or paths)
    seen = [_at(tree, one(rng, paths)) for _ in range(2)]

    def rebuilt(node: Any, rest: tuple[Any, ...]) -> Any:
        key, *more = rest
        copy = dict(node) if isinstance(node, dict) else list(node)
        if more:
            copy[key] = rebuilt(node[key], tuple(more))
            return copy
        old, kind = node[key], rng.randrange(9)
        if kind == 0:
            del copy[key]
        elif kind == 1 and isinstance(copy, dict):
            copy[f"{key}{one(rng, ('_', 'x', chr(27), 's'))}"] = copy.pop(key)
        elif kind == 1:
            copy.insert(key, old)
        elif kind == 2:
            copy[key] = one(rng, ([old], {"x": old}, [old, old]))
        elif kind == 3 and isinstance(old, int | float):
            copy[key] = one(rng, (old + 1, old - 1, -old, old * 2, old * 1000, float(old), str(old), bool(old)))
        elif kind == 3 and isinstance(old, str):
            copy[key] = text(rng, old)
        else:
            copy[key] = value(rng, seen)
        return copy

    return rebuilt(tree, path)


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def changed_json(rng: random.Random, tree: Any, least: int = 0) -> bytes:
    """A JSON text: a few changes to the value, `least` or more, and now and then some to its spelling."""
    for _ in range(max(least, one(rng, (0, 1, 1, 1, 2, 3, 6)))):
        tree = change(rng, tree)
    try:
        raw = json.dumps(tree, ensure_ascii=rng.random() < 0.8).encode()
    except (UnicodeEncodeError, RecursionError):
        raw = b'{"a":' * 3000
    while rng.random() < 0.15:
        raw = text(rng, raw.decode("latin-1")).encode("latin-1")
    return raw


PIECES = (
    "", "0", "1", "-", "[", "]", "{", "}", ",", ":", '"', " ", "\n", "1e3", "null", "true", "NaN", "-Infinity", "1e999",
    "[0,0]", "\\ud800", "\\u0061", "\0", "\\", "-0", "9" * 30, '"a":1,"a":2', "\x7f", "\xff", "{%", "%}", "{{", "}}",
)  # fmt: skip


def text(rng: random.Random, old: str, pieces: Sequence[str] = PIECES) -> str:
    """A text with a few characters replaced, removed, doubled or put in."""
    for _ in range(one(rng, (1, 1, 2, 4))):
        at = rng.randrange(len(old) + 1)
        stop = min(len(old), at + rng.randrange(7))
        piece = one(rng, (one(rng, pieces), one(rng, pieces), old[at:stop] * 2, chr(rng.randrange(256))))
        old = old[:at] + piece + old[stop:]
    return old


def changed_bytes(rng: random.Random, old: bytes, other: bytes = b"") -> bytes:
    """Bytes with something flipped, cut, moved, or a little-endian number replaced; `other` lends some of its own."""
    data = bytearray(old)
    for _ in range(one(rng, (1, 1, 1, 2, 3, 8))):
        at, kind = rng.randrange(len(data) + 1), rng.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + rng.randrange(1, 20)]
        elif kind == 2:
            data[at:at] = data[at : at + rng.randrange(1, 20)]
        elif kind == 3:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 4:
            number = int(one(rng, NUMBERS)) % 2**64
            data[at : at + 8] = struct.pack("<Q", number)
        elif kind == 5:
            data[at : at + 4] = struct.pack("<I", int(one(rng, NUMBERS)) % 2**32)
        elif other:
            start = rng.randrange(len(other))
            data[at : at + 9] = other[start : start + rng.randrange(1, 40)]
        if rng.random() < 0.03:
            del data[at:]
    return bytes(data)

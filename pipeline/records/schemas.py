"""What files of ours look like: JSON Schemas (2020-12) in `schemas/`, one for each kind, and who checks against them.

They say no more than readers rely on: what a schema does not name may be there. Of the keywords only those are used
that mean the same in draft 7, which the validator is compiled for. A file says its version as `weightmill`; older ones
are made into the newest form as they are read, newer ones are refused.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, SourceError, StorageError, did_you_mean, nearest, short
from pipeline.files import read_whole, spoken, write_json

VERSION = "weightmill"  # what a file says its version as
MOST_RECORD_NBYTES = 1 << 30  # a manifest: a row for every tensor
FILES = {"manifest.json": "manifest", "run.json": "run", "metrics.jsonl": "metrics", "errors.csv": "errors"}
EARLY_RUN = {"stages", "seed", "inputs", "code"}  # what the first run.json had, which knew neither an id nor keys
ROW, OWN = "row", ("metric", "point", "figure")  # lines of metrics: what is defined for them by kind, and for others

MOST_LOOKS = 4000  # at values, until compiling a schema takes less time than going through it
TYPES: Mapping[str, set[type]] = {
    "string": {str}, "integer": {int}, "number": {int, float}, "boolean": {bool}, "null": {type(None)},
    "object": {dict}, "array": {list, tuple},
}  # fmt: skip
SAYING = {"$schema", "$id", "$defs", "title", "description"}  # keywords that by themselves allow and forbid nothing

Validator = Callable[[Any], Any]

_looks: dict[str, int] = {}  # by kind, how many there were in this process


class Newer(SourceError):
    """A file that a newer Weightmill wrote."""


def kinds() -> list[str]:
    """What there are schemas of."""
    return sorted(p.name.removesuffix(".json") for p in _folder().iterdir() if p.name.endswith(".json"))


@cache
def schema(kind: str) -> dict[str, Any]:
    """The schema of a kind of file.

    Raises:
        ConfigError: there is none.
    """
    file = _folder() / f"{kind}.json"
    if not re.fullmatch(r"\w+", kind) or not file.is_file():
        raise ConfigError(f"{short(kind, 60)!r} has no schema{did_you_mean(kind, kinds())}")
    return dict(json.loads(file.read_text(encoding="utf-8")))


def version(kind: str) -> int:
    """The newest version of a kind, which is what is written."""
    return int(str(schema(kind)["$id"]).rpartition(":")[2])


def fault(kind: str, value: Any) -> str | None:
    """Where `value` is not as the schema says: the path in it, what was given, what is allowed. None: nowhere."""
    return None if _sound(kind, schema(kind), value) else _fault(_validator(kind), value)


def check(kind: str, value: Any, where: Path | str) -> None:
    """Raises SourceError when `value`, which was read from `where`, is not of its newest version."""
    if (why := fault(kind, value)) is not None:
        raise SourceError(f"{spoken(where)}: is no {kind} of ours: {why}")


def upgraded(kind: str, value: Any, where: Path | str) -> dict[str, Any]:
    """What was read from `where`, whatever its version, as the newest one has it, and checked.

    Raises:
        Newer: a newer version wrote it.
        SourceError: it is not as the schema says.
    """
    if not isinstance(value, Mapping):
        raise SourceError(f"{spoken(where)}: is no {kind} of ours: {_given(value)} was given, an object is allowed")
    newest, found = version(kind), value.get(VERSION, 0)  # the first ones did not say it
    if not isinstance(found, int) or isinstance(found, bool):
        raise SourceError(f"{spoken(where)}: is no {kind} of ours: {VERSION} is {_given(found)}, a version is allowed")
    if found > newest:
        raise Newer(
            f"{spoken(where)}: is a {kind} of version {found}, by a newer Weightmill; this one reads up to {newest}"
        )
    # What later versions added has a default where it is read: `better` of figures, fields of a manifest.
    if kind == "run" and VERSION not in value and {*value} >= EARLY_RUN and "nodes" not in value:
        value = {"id": "", "nodes": {}, "places": {}}
    now = {VERSION: newest, **{k: v for k, v in value.items() if k != VERSION}}
    check(kind, now, where)
    return now


def read(kind: str, path: Path) -> dict[str, Any]:
    """A file of a kind, of any version there was.

    Raises:
        Newer: a newer version wrote it.
        SourceError: it cannot be read, is not whole, or not as the schema says.
    """
    try:
        given = json.loads(read_whole(path, MOST_RECORD_NBYTES))
    except (ValueError, RecursionError) as why:
        raise SourceError(f"{spoken(path)}: is no {kind} of ours, or not whole: {short(str(why), 200)}") from None
    return upgraded(kind, given, path)


def write(kind: str, path: Path, value: Mapping[str, Any]) -> None:
    """Write a file of a kind in one rename, with its version.

    Raises:
        StorageError: it cannot be written, or is not as the schema says, which is a bug of whoever made it.
    """
    write_json(path, _with_version(kind, value, spoken(path)))


def dumped(kind: str, value: Mapping[str, Any]) -> str:
    """What a file of a kind has in it, with its version, for whoever writes it elsewhere.

    Raises:
        StorageError: it is not as the schema says, which is a bug of whoever made it.
    """
    return json.dumps(_with_version(kind, value, kind), indent=1, allow_nan=False)


def _with_version(kind: str, value: Mapping[str, Any], where: str) -> dict[str, Any]:
    said = {VERSION: version(kind), **{k: v for k, v in value.items() if k != VERSION}}
    if (why := fault(kind, said)) is not None:
        raise StorageError(f"{where}: what was to be written is no {kind}: {why}")
    return said


def fault_of_line(row: Any) -> str | None:
    """Where a line of metrics is not as the schema says; by its kind, which is quicker than all of them."""
    if type(row) is not dict or type(kind := row.get("kind")) is not str:
        given = f"kind {_given(row['kind'])}" if isinstance(row, dict) and "kind" in row else _given(row)
        return f"{given} was given, an object with a kind that is text is allowed"
    name = kind if kind in OWN else ROW
    if _sound(name, schema("metrics")["$defs"][name], row):
        return None
    try:
        _line(name)(row)
    except Exception:
        return _fault(_line(name), row)
    return None


def columns_hold(kind: str, columns: Mapping[str, Sequence[Any]]) -> bool:
    """Whether lines of metrics of one kind, given by columns, are all as the schema says; False: perhaps."""
    said = schema("metrics")["$defs"][kind if kind in OWN else ROW]
    return {*said["required"]} <= columns.keys() and all(
        _column_holds(rule, columns[name]) for name, rule in said["properties"].items() if name in columns
    )


def check_line(row: Mapping[str, Any], path: Path) -> None:
    """Raises StorageError when a line that is to be written is not as the schema says."""
    if (why := fault_of_line(row)) is not None:
        raise StorageError(f"{spoken(path)}: what was to be written is no row of metrics: {why}")


def _sound(kind: str, said: Mapping[str, Any], value: Any) -> bool:
    """Whether a value is as the schema of its kind says; False: perhaps. A run has few records, and compiling what they
    are checked against would take longer than all else that is done for them."""
    return _looks.get(kind, 0) < MOST_LOOKS and _holds(kind, said, value)


def _holds(kind: str, rule: Mapping[str, Any], value: Any) -> bool:
    """As `_sound`, of the keywords that most have, and of types as JSON gives them."""
    _looks[kind] = looks = _looks.get(kind, 0) + 1
    if looks > MOST_LOOKS:
        return False
    named = rule.get("properties", {})
    for keyword, said in rule.items():
        match keyword:
            case "type":
                holds = any(type(value) in TYPES[one] for one in ([said] if isinstance(said, str) else said))
            case "enum" | "const":
                holds = any(
                    type(value) is type(one) and value == one for one in ([said] if keyword == "const" else said)
                )
            case "minimum":
                holds = not isinstance(value, int | float) or value >= said
            case "required":
                holds = not isinstance(value, dict) or {*said} <= value.keys()
            case "properties":
                given = value if isinstance(value, dict) else {}
                holds = all(_holds(kind, one, given[name]) for name, one in said.items() if name in given)
            case "additionalProperties":
                given = value if isinstance(value, dict) else {}
                holds = said is True or (
                    said is not False and all(_holds(kind, said, v) for name, v in given.items() if name not in named)
                )
            case "items":
                holds = not isinstance(value, list | tuple) or all(_holds(kind, said, one) for one in value)
            case "anyOf":
                holds = any(_holds(kind, one, value) for one in said)
            case _:
                holds = keyword in SAYING
        if not holds:
            return False
    return True


def _column_holds(rule: Mapping[str, Any], values: Sequence[Any]) -> bool:
    """As `columns_hold`: of the keywords only those that lines of metrics have, each on its own."""
    types = {*map(type, values)}
    match {k: v for k, v in rule.items() if k != "description"}:
        case {"type": "string", **rest}:
            return types <= {str} and not rest
        case {"type": "number", **rest}:
            return types <= {int, float} and not rest
        case {"type": "integer", "minimum": least, **rest}:
            return types <= {int} and min(values) >= least and not rest
        case {"enum": allowed, **rest}:
            return types <= {str} and {*values} <= {*allowed} and not rest
        case {"const": allowed, **rest}:
            return types <= {type(allowed)} and {*values} <= {allowed} and not rest
        case {"anyOf": rules, **rest}:
            return any(_column_holds(one, values) for one in rules) and not rest
        case {"type": [*several], **rest}:
            return any(_column_holds({"type": one}, values) for one in several) and not rest
    return False


@cache
def _folder() -> Any:
    return resources.files("pipeline.records") / "schemas"


@cache
def _validator(kind: str) -> Validator:
    return _compiled(schema(kind))


@cache
def _line(kind: str) -> Validator:
    return _compiled(schema("metrics")["$defs"][kind])


def _compiled(given: Mapping[str, Any]) -> Validator:
    import fastjsonschema

    found: Validator = fastjsonschema.compile(dict(given), use_default=False)
    return found


def _fault(valid: Validator, value: Any) -> str | None:
    from fastjsonschema import JsonSchemaValueException

    try:
        valid(value)
    except JsonSchemaValueException as why:
        return _said(str(why.name), str(why.rule), why.definition, why.value)
    return None


def _said(at: str, rule: str, definition: Mapping[str, Any], value: Any) -> str:
    """A fault as people are told it."""
    place = at.removeprefix("data").removeprefix(".")
    if rule == "required" and isinstance(value, Mapping):
        missing = [name for name in definition["required"] if name not in value]
        near = nearest(missing[0], [str(k) for k in value])
        hint = f"; it has {near[0]!r}" if near else ""
        return f"{place or 'it'} has no {', '.join(map(repr, missing))}{hint}"
    allowed = definition.get(rule)
    if rule == "type":
        allowed = " or ".join([allowed] if isinstance(allowed, str) else map(str, allowed or ()))
    words = {
        "type": f"{allowed} is allowed", "enum": f"one of {allowed} is allowed",
        "const": f"{allowed} is allowed", "minimum": f"{allowed} or more is allowed",
    }  # fmt: skip
    return f"{place or 'it'} is {_given(value)}, {words.get(rule, f'{rule} {allowed} is asked for')}"


def _given(value: Any) -> str:
    if isinstance(value, Mapping | list):
        return f"{'an object' if isinstance(value, Mapping) else 'a list'} of {len(value)}"
    return short(repr(value), 60)

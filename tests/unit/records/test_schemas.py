"""What is written is what the schemas say, and they are schemas; older files are read, newer and foreign ones named."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pipeline.errors import ConfigError, SourceError, StorageError
from pipeline.records import schemas

LINES: list[Any] = [
    {"kind": "point", "name": "a", "value": 1.5}, {"kind": "point", "name": "a", "value": "nan"},
    {"kind": "point", "name": "a", "value": "b"}, {"kind": "point", "name": "a"}, {"kind": "point", "value": 1},
    {"kind": "metric", "of": "a", "name": "b", "unit": "s", "better": ""}, {"kind": "metric", "of": "a", "name": "b"},
    {"kind": "train", "step": 1, "loss": 2}, {"kind": "train", "step": 1.5}, {"kind": "train", "time": "now"},
    {"kind": "figure", "name": "worst", "value": "layer 0"}, {"kind": "figure", "name": "a", "value": None},
    {"kind": 1}, {}, [], 5, {"kind": "train", "v": 2}, {"kind": "train", "v": 1, "member": -1},
]  # fmt: skip
RUN: dict[str, Any] = {"id": "x", "nodes": {"load": {"key": "k", "parts": {}}}, "places": {}}


@pytest.mark.parametrize("kind", schemas.kinds())
def test_each_is_a_schema(kind: str) -> None:
    given = schemas.schema(kind)
    jsonschema.Draft202012Validator.check_schema(given)
    assert given["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schemas.version(kind) >= 1


@pytest.mark.parametrize("line", LINES, ids=str)
def test_the_quick_check_of_a_line_says_what_the_schema_says(line: Any) -> None:
    right = jsonschema.Draft202012Validator(schemas.schema("metrics")).is_valid(line)
    assert (schemas.fault_of_line(line) is None) == right


RULES: list[dict[str, Any]] = [
    {"type": "string"}, {"type": ["integer", "null"], "minimum": 0}, {"type": "number"}, {"enum": ["a", 1, None]},
    {"const": True}, {"type": "array", "items": {"type": "integer"}}, {"required": ["a"]}, {"minItems": 1},
    {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}, "title": "x"},
    {"type": "object", "additionalProperties": False}, {"anyOf": [{"type": "string"}, {"minimum": 1}]},
]  # fmt: skip
VALUES: list[Any] = [
    "a", "", 1, 1.0, 0.5, -1, True, False, None, [], [1], [1, "a"], {}, {"a": 1}, {"a": "x"},
    {"a": 1, "b": "x"}, {"b": 1},
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_what_is_sound_at_a_glance_is_so(monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any]) -> None:
    """And most of what is sound is seen to be at a glance, until there were many."""
    monkeypatch.setattr(schemas, "_looks", {})
    right = [jsonschema.Draft202012Validator(rule).is_valid(value) for value in VALUES]
    found = [schemas._sound("x", rule, value) for value in VALUES]
    assert all(valid for valid, sound in zip(right, found, strict=True) if sound)
    assert "minItems" in rule or sum(found) >= sum(right) - 2
    monkeypatch.setattr(schemas, "_looks", {"x": schemas.MOST_LOOKS})
    assert not any(schemas._sound("x", rule, value) for value in VALUES)


def test_few_records_need_no_compiled_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(given: Any) -> Any:
        raise AssertionError(given)

    monkeypatch.setattr(schemas, "_looks", {})
    monkeypatch.setattr(schemas, "_compiled", compiled)
    schemas._validator.cache_clear()
    schemas._line.cache_clear()
    schemas.write("run", tmp_path / "run.json", RUN)
    schemas.check_line({"kind": "figure", "name": "a", "value": 1.5}, tmp_path)
    schemas.check_line({"kind": "run", "seconds": 1.5, "ratio": 2}, tmp_path)
    with pytest.raises(AssertionError):
        schemas.fault("run", {**RUN, "places": {"a": 5}})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    schemas.write("run", file, RUN)
    assert schemas.read("run", file) == {"weightmill": 1, **RUN}
    file.write_text(json.dumps(RUN))  # as earlier versions wrote it
    assert schemas.read("run", file) == {"weightmill": 1, **RUN}


def test_faults_say_file_place_what_was_given_and_what_is_allowed(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    for given, said in (
        ({**RUN, "places": {"a": 5}}, r"run.json: is no run of ours: places.a is 5, string is allowed"),
        ({"id": "x", "node": {}, "places": {}}, r"it has no 'nodes'; it has 'node'"),
        ([1], "a list of 1 was given, an object is allowed"),
        ({**RUN, "weightmill": 7}, r"run.json: is a run of version 7, by a newer Weightmill; this one reads up to 1"),
        ({**RUN, "weightmill": "1"}, "weightmill is '1', a version is allowed"),
    ):
        file.write_text(json.dumps(given))
        with pytest.raises(SourceError, match=said):
            schemas.read("run", file)
    whole = json.dumps(RUN)
    for cut in range(len(whole)):
        file.write_text(whole[:cut])
        with pytest.raises(SourceError, match=r"run\.json"):
            schemas.read("run", file)
    with pytest.raises(StorageError, match="what was to be written is no run: id is 5"):
        schemas.write("run", file, {**RUN, "id": 5})
    with pytest.raises(ConfigError, match="did you mean 'manifest'"):
        schemas.schema("manifset")
    with pytest.raises(ConfigError, match="has no schema"):
        schemas.schema("../schemas/run")

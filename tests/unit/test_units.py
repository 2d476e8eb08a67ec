"""Byte counts, the error family and its hints."""

import pickle

import pytest

from pipeline.errors import (
    ConfigError,
    PlanError,
    Problem,
    SourceError,
    StageError,
    StorageError,
    ValueRangeError,
    did_you_mean,
    nearest,
)
from pipeline.units import parse_bytes, show_bytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1", 1),
        ("7B", 7),
        ("2GiB", 2**31),
        ("512mib", 2**29),
        ("5GB", 5 * 10**9),
        ("1.5 KiB", 1536),
        (" 3 TB ", 3 * 10**12),
        (4096, 4096),
    ],
)
def test_sizes(text: str | int, nbytes: int) -> None:
    assert parse_bytes(text, "k") == nbytes


def test_a_small_number_without_a_unit_is_questioned() -> None:
    """max_shard_size=5 would be files of five bytes."""
    with pytest.raises(ConfigError, match=r"^k=5 would be 5 bytes; write the unit, k=5GB \(or 5B\)$"):
        parse_bytes("5", "k", bare=1 << 20)
    assert parse_bytes("5B", "k", bare=1 << 20) == 5
    assert parse_bytes(1 << 20, "k", bare=1 << 20) == 1 << 20


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "2 GIG", "1e9", "0", "0.1B", "2GiB!", "inf", "1_000"])
def test_not_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^dask\.memory=") as why:
        parse_bytes(text, "dask.memory")
    assert repr(text) in str(why.value)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**30, "1.0 GiB"),
        (2**40, "1.0 TiB"),
        (2**51, "2048.0 TiB"),
    ],
)
def test_shown(nbytes: int, text: str) -> None:
    assert show_bytes(nbytes) == text


def test_nearest_ignores_case_and_order_of_equals() -> None:
    assert nearest("MXFP4", ["none", "mxfp4"]) == ["mxfp4"]
    assert nearest("scale_rul", ["ties", "scale_rule", "scale"])[0] == "scale_rule"
    assert nearest("zzz", ["ties", "scale_rule"]) == []


def test_hint_names_the_nearest_and_what_is_allowed() -> None:
    assert did_you_mean("flor", ["floor", "ceil"]) == "; did you mean 'floor'? (allowed: floor, ceil)"
    assert did_you_mean("quantt", ["quant.ties", "quant"]).startswith("; did you mean 'quant'? ")  # the other is far
    assert did_you_mean("int", ["int8", "int4"]).startswith("; did you mean 'int8' or 'int4'? ")
    assert did_you_mean("?", ["a", "load", "b"]) == " (allowed: a, load, b)"
    assert did_you_mean("?", ["a", "load", "b", "shard"], 2) == " (allowed: load, shard and 2 more)"
    assert did_you_mean("zzz", ["floor", "ceil"]) == " (allowed: floor, ceil)"
    assert did_you_mean("x", []) == " (allowed: none)"
    assert did_you_mean("zzz", map(str, range(100)), most_listed=3) == " (allowed: 0, 1, 2 and 97 more)"


def test_every_error_has_its_exit_code() -> None:
    codes = {e: e.exit_code for e in (ConfigError, PlanError, SourceError, StorageError, StageError, ValueRangeError)}
    assert codes == {ConfigError: 2, PlanError: 3, SourceError: 4, StorageError: 5, StageError: 6, ValueRangeError: 6}


def test_a_plan_error_travels_between_processes_whole() -> None:
    why = PlanError([Problem("quant", "unknown"), Problem("model", "none")], exit_code=2)
    there: PlanError = pickle.loads(pickle.dumps(why))
    assert (there.problems, there.exit_code, str(there)) == (why.problems, 2, "quant: unknown\nmodel: none")

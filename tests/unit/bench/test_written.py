"""What benchmarks write is held to their schema: what is not as it says is not written."""

import math
from pathlib import Path

import pytest

from pipeline.errors import StorageError
from pipeline.records import schemas
from plugins.bench import written


def test_a_file_is_read_by_its_schema(tmp_path: Path) -> None:
    rows = [{"name": "a", "seconds": math.nan, "rounds": [{"seconds": 1.5}]}]
    written.write(tmp_path / "new", "mesh", {"cpu": "x"}, rows=rows, others=0.5)
    found = schemas.read("benchmark", tmp_path / "new/bench_mesh.json")
    assert found["rows"] == [{**rows[0], "seconds": "nan"}]  # what JSON has no number for is text
    assert (found["benchmark"], found["machine"], found["others"]) == ("mesh", {"cpu": "x"}, 0.5)
    with pytest.raises(StorageError, match="rows"):
        written.write(tmp_path, "mesh", {}, rows={"a": 1})
    assert not (tmp_path / "bench_mesh.json").exists()

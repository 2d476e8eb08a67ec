"""How a command starts: what it imports, which is most of what a short one takes."""

from pathlib import Path

import pytest

from tests.cli.run import ROOT, pipeline

TIMED = {"PYTHONPROFILEIMPORTTIME": "1"}
SOURCE = f"model.source={ROOT / 'plugins/models/gpt_oss/tiny'}"
CONVERT = ("+model=gpt_oss", "quant=mxfp4", "flow=convert", SOURCE)
OTHERS = {"attr._make", "distributed", "jinja2.environment", "jax", "torch", "asyncio", "ssl", "jsonschema"}
"""What nothing in a conversion needs, although something that it imports would take it along."""
OF_RUNS = {"dask", "multiprocessing.connection", "pipeline.running.runner"}
OF_PLANS = {"numpy", "rich.console", "psutil", "pipeline.stage", "pipeline.planning.wiring"}


@pytest.mark.parametrize(
    ("words", "there", "absent"),
    [
        (("--help",), {"omegaconf"}, OF_PLANS | OF_RUNS),
        (("plan", *CONVERT), {"numpy", "rich.console"}, {"dask"}),
        (CONVERT, {"numpy", "rich.console", "dask"}, set()),
    ],
    ids=["help", "plan", "convert"],
)
def test_a_command_imports_what_it_needs(
    tmp_path: Path, words: tuple[str, ...], there: set[str], absent: set[str]
) -> None:
    said = pipeline(*words, cwd=tmp_path, env=TIMED)
    assert said.code == 0, said.err
    timed = (line for line in said.err.splitlines() if line.startswith("import time:"))
    found = {line.rpartition("|")[2].strip() for line in timed}
    assert there < found
    assert not sorted((OTHERS | absent) & found)

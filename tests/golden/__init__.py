"""Digests of what the embedded model's exports are, byte for byte.

They say nothing of right or wrong; the oracles do. They say that something changed: another NumPy, a rewritten kernel,
a new key in a config.json. `make golden` writes them anew, and the diff is then part of the change.
"""

import json
from pathlib import Path

from pipeline.running.target import MARKER
from tests.cli.run import pipeline

DIGESTS = Path(__file__).with_name("digests.json")
CASES = {
    "hf": ("+model=gpt_oss", "quant=none"),
    "hf-mxfp4": ("+model=gpt_oss", "quant=mxfp4"),
    "hf-mxfp4-even": ("+model=gpt_oss", "quant=mxfp4", "quant.scale_rule=even"),
    "hf-mxfp4-sharded": ("+model=gpt_oss", "quant=mxfp4", "export.max_shard_size=1MB"),
    "original-mxfp4": ("+model=gpt_oss", "quant=mxfp4", "export=original"),
    "gguf-mxfp4": ("+model=gpt_oss", "quant=mxfp4", "export=gguf"),
    "numpy-fp16": ("+model=gpt_oss", "export=numpy", "export.dtype=fp16", "export.overflow=clamp"),
}


def digests(case: str, folder: Path) -> dict[str, str]:
    """Run `case` in `folder`; file name → xxh3-128 of every file that it exports, without the run's marker."""
    said = pipeline(*CASES[case], "paths.run=run", cwd=folder)
    assert said.code == 0, said.err
    outputs = json.loads((folder / "run/manifest.json").read_bytes())["outputs"]
    return {name: f["xxh3_128"] for f in outputs if (name := Path(f["path"]).name) != MARKER}


def expected() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(DIGESTS.read_bytes())
    return found

"""Makes tests/cases/llm_compressor.npz again: what llm-compressor's GPTQ made of a model that we wrote.

    python -m tests.oracle.llm_compressor_records path/to/python

The Python is one with `pip install llmcompressor`, which is not among the oracles: it has a torch and a
compressed-tensors of its own. Recorded is llmcompressor 0.14.0.1, with compressed-tensors 0.19.0 and torch 2.13.0.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from plugins.bench.llm_compressor import LlmCompressor, version_in
from tests.unit.quant.test_llm_compressor import GROUP, RECORD, SETTINGS, matrices, rows, write


def main(python: str) -> None:
    """Quantize the model in every way of `SETTINGS`, and keep codes, scales and zero points as they are stored."""
    record: dict[str, Any] = {"version": np.array(version_in(python))}
    with tempfile.TemporaryDirectory() as folder:
        source = write(Path(folder) / "model")
        record["rows"] = rows().astype(np.uint16)
        for name, (theirs, _) in SETTINGS.items():
            place = Path(folder) / name
            place.mkdir()
            one = LlmCompressor("gptq", python, group=GROUP, **theirs)
            one.compress(source, place / "out", record["rows"], matrices(), place)
            with safe_open(place / "out" / "model.safetensors", "np") as found:
                kept = [k for k in found.keys() if k.endswith(("_packed", "_scale", "_zero_point"))]  # noqa: SIM118
                record |= {f"{name}/{k}": found.get_tensor(k) for k in kept}
    np.savez_compressed(RECORD, **record)


if __name__ == "__main__":
    main(sys.argv[1])

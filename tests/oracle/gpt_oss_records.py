"""Makes tests/cases/gpt_oss_torch.json again: what gpt_oss.torch made of a model that we wrote.

    PYTHONPATH=path/to/gpt-oss python -m tests.oracle.gpt_oss_records

The package `gpt-oss` asks for Python 3.12 and for servers that nobody needs here, so it is not among the oracles; a
checkout has the folder gpt_oss. The recorded one is openai/gpt-oss 7b58334.
"""

import dataclasses
import importlib
import json
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

from plugins.formats.gpt_oss.dialect import Original
from tests.cases import toy_gpt_oss as toys
from tests.oracle.test_gpt_oss import RECORD, TOKENS, bits, read, values, write

EVERY = 16  # of the logits of a token, one in so many is kept


def check(model: Any, toy: toys.Toy) -> None:
    """Every parameter has the bits that it should: what was written is read as what it is."""
    state = {n: p.detach().float().numpy() for n, p in model.named_parameters()}
    plain = {n: v.astype(ml_dtypes.bfloat16) for n, v in values(toy).items()}
    expected = toys._original_leaves(plain)
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        assert (bits(state[name]) == bits(value.astype(np.float32))).all(), name


def main() -> None:
    program = importlib.import_module("gpt_oss.torch.model")
    toy = toys.make(experts="mxfp4")
    with tempfile.TemporaryDirectory() as folder:
        written = write(Path(folder), Original(), toy)
        model = program.Transformer.from_checkpoint(str(written), device="cpu")
        check(model, toy)
        config = json.loads((written / "config.json").read_text())
        program.ModelConfig(**config)
        assert [f.name for f in dataclasses.fields(program.ModelConfig)] == list(config)
        with torch.no_grad():
            logits = model.float()(torch.tensor(TOKENS[0])).numpy()[:, ::EVERY]
        record = {"config": config, "leaves": read(written), "every": EVERY, "logits": logits.tolist()}
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in record.items()]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
